"""Processes that begin as a fork, where all heavy libraries are imported already: they start in a tenth of a second."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkProcess
from typing import NoReturn
from unittest.mock import patch

from agentrl.concurrency.signals import leave

RANK = ("-m", "agentrl.cli.ranks.run")
"""How `agentrl` starts a rank."""


def ready_to_fork() -> None:
    """Import what every training process imports; forks share that memory."""
    import pandas  # noqa: F401  # by pyarrow, with the first table

    import agentrl.agent_loops
    import agentrl.backends.fsdp.backend
    import agentrl.cli.train
    import agentrl.engines.torch.loader
    import agentrl.trainer.run  # noqa: F401

    gc.freeze()


def become(main: Callable[[], int | None], words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Go on in a fork as a new process with this command line and environment would."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # a file's lock would last as long as its copy
    sys.argv[:] = words
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    weakref.finalize._registry.clear()  # temporary folders of the process that forked
    try:
        leave(main() or 0)
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc()
        leave(1)


class Rank(ForkProcess):
    """A rank in a fork of the launcher, with the methods of `subprocess.Popen` that the launcher calls."""

    def __init__(self, main: Callable[[], int], words: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(target=self._run, args=(main, words, environment))
        self.start()

    @staticmethod
    def _run(main: Callable[[], int], words: Sequence[str], environment: Mapping[str, str]) -> None:
        os.setsid()
        become(main, words, environment)

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired("rank", timeout or 0)
        return self.exitcode


def fork_ranks(main: Callable[[], int], words: Sequence[str] = RANK) -> None:
    """From now on this process starts ranks as forks that call `main`, if their command line begins with `words`."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    real = SubprocessHandler._popen

    def start(self: SubprocessHandler, command: tuple[str, ...], environment: dict[str, str]) -> object:
        if command[1 : 1 + len(words)] != tuple(words):
            return real(self, command, environment)
        return Rank(main, command[len(words) :], environment)

    patch.object(SubprocessHandler, "_popen", start).start()
