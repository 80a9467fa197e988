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

from agentrl.backends.fsdp import checkpoint, ranks, sharding
from agentrl.cli.main import main
from agentrl.cli.ranks import run
from agentrl.cluster import launch

SILENT_S = 20.0
"""The launcher kills a silent process after so long."""
HANG_S = 600


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
        before(sharding.Root, "forward", lambda *_: self._reached("forward"))
        before(torch.autograd, "backward", self._in_backward)
        before(checkpoint, "_write_shards", lambda *_: self._reached("save"))  # the optimizer state is missing

    def _reached(self, phase: str) -> None:
        if phase == self._phase and self._saves == (2 if phase == "save" else 1):
            mark(self._file)
            os.kill(os.getpid(), self._signal)
            time.sleep(HANG_S)

    def _called(self, _: object, function: Callable[..., object], *__: object) -> None:
        self._saves += function.__name__ in ("_save", "_begin_save")
        if function.__name__ == "_fill":
            self._reached("publish")

    def _in_backward(self, value: torch.Tensor, *_: object) -> None:
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
