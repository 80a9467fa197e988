"""Tests of Megatron, each file in a fork of one process that has imported it: `python megatron_files.py MARKS FILE...`.

Process groups of one file's layouts keep threads, which slow down the tests of another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import pytest

from agentrl.backends.megatron.platform import prepare, quiet_imports

IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
"""Plugins of pytest that Megatron imports as well."""
NO_TESTS = pytest.ExitCode.NO_TESTS_COLLECTED


def status_of(marks: str, file: str) -> int:
    """The exit code of pytest for the tests of a file with these marks."""
    if not (fork := os.fork()):
        status = pytest.main(["-m", marks, file, "--durations", "3", "-W", IMPORTED])
        sys.stdout.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])


def main(marks: str, files: Sequence[str]) -> int:
    """Returns 0 if all tests pass, of which there must be some."""
    prepare()
    with quiet_imports():
        import agentrl.backends.megatron.model  # noqa: F401  # after `prepare`
    statuses = {status_of(marks, file) for file in files} - {NO_TESTS}
    return int(statuses != {0})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
