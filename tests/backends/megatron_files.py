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


def passes(marks: str, file: str) -> bool:
    """Whether all tests of a file with these marks pass, or there are none."""
    if not (fork := os.fork()):
        status = pytest.main(["-m", marks, file, "--durations", "3", "-W", IMPORTED])
        sys.stdout.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) in (0, NO_TESTS)


def main(marks: str, files: Sequence[str]) -> int:
    """Returns the number of files with a test that does not pass."""
    prepare()
    with quiet_imports():
        import agentrl.backends.megatron.model  # noqa: F401  # after `prepare`
    failed = [file for file in files if not passes(marks, file)]
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
