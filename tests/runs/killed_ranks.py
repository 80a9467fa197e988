"""A run on several processes of which some end: `python killed_ranks.py DEATHS MARKS train key=value ...`.

DEATHS is `RANK:PHASE:SIGNAL,...`, one per attempt of the launcher. In each attempt, the process of RANK sends SIGNAL to
itself when it reaches PHASE after its first save. The files `ended-N` and `started-N` in the folder MARKS have the
times of the signal in attempt N and of the start of attempt N.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from forks import fork_ranks, ready_to_fork
from torch.nn.modules.module import register_module_forward_pre_hook

from agentrl.backends.fsdp import ranks
from agentrl.cli.main import main
from agentrl.cli.ranks import run
from agentrl.cluster import launch

SILENT_S = 20.0
"""The launcher kills a silent process after so long."""
HANG_S = 600
TRAINED = {"Root", "LanguageModule"}
"""Classes of the models that train, not of the engine's: of FSDP2 and of megatron-core."""
WRITERS = {
    "agentrl.backends.fsdp.checkpoint": "_write_shards",
    "agentrl.backends.megatron.weights.checkpoint": "write_parts",
}
"""Functions that write the optimizer state, by module; the weights are written, the state is not."""


def before(owner: object, name: str, now: Callable[..., object]) -> None:
    """Call `now` with the same arguments before each call of `owner.name`."""
    real = getattr(owner, name)

    def entered(*args: object, **kwargs: object) -> object:
        now(*args)
        return real(*args, **kwargs)

    setattr(owner, name, entered)


def mark(file: Path) -> None:
    file.write_text(str(time.time()))


class Death:
    """Sends the signal to this process when it reaches the phase, in the step after its first save."""

    def __init__(self, phase: str, name: str, file: Path) -> None:
        self._phase, self._signal, self._file, self._saves = phase, signal.Signals[name], file, 0

    def install(self) -> None:
        before(ranks.Ranks, "_answer", self._called)
        register_module_forward_pre_hook(self._in_forward)
        before(torch.autograd, "backward", self._in_backward)

    def _reached(self, phase: str) -> None:
        if phase == self._phase and self._saves == (2 if phase == "save" else 1):
            mark(self._file)
            os.kill(os.getpid(), self._signal)
            time.sleep(HANG_S)

    def _called(self, _: object, function: Callable[..., object], *__: object) -> None:
        if function.__name__ in ("_save", "_begin_save"):
            self._saves += 1
            if self._saves == 1:
                self._watch_writers()
        if function.__name__ == "_fill":
            self._reached("publish")

    def _watch_writers(self) -> None:
        """The modules are loaded now: the module of the other backend may need libraries that are not installed."""
        for module, name in WRITERS.items():
            if module in sys.modules:
                before(sys.modules[module], name, lambda *_: self._reached("save"))

    def _in_forward(self, module: torch.nn.Module, _: object) -> None:
        if TRAINED & {each.__name__ for each in type(module).__mro__}:
            self._reached("forward")

    def _in_backward(self, values: torch.Tensor | tuple[torch.Tensor], *_: object) -> None:
        (value,) = values if isinstance(values, tuple) else (values,)  # torch calls its function again with a tuple
        value.register_hook(lambda _: self._reached("backward"))


def take_part(deaths: list[str], marks: Path) -> int:
    """Run one rank, in a fork of the launcher; it ends if this attempt has a death for it."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt < len(deaths):
        rank, phase, name = deaths[attempt].split(":")
        if rank == os.environ["RANK"]:
            Death(phase, name, marks / f"ended-{attempt}").install()
    return run.main()


def start(deaths: list[str], marks: Path, arguments: list[str]) -> int:
    """Run the command line."""
    launch.SILENT_S = SILENT_S
    ready_to_fork()
    fork_ranks(lambda: take_part(deaths, marks))
    before(launch._Agent, "_start_workers", lambda agent, _: mark(marks / f"started-{agent._attempt()}"))
    return main(arguments)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1].split(","), Path(sys.argv[2]), sys.argv[3:]))
