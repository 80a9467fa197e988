"""A command that `warm_agentrl` starts ends like `python -m agentrl`."""

from __future__ import annotations

import subprocess

import pytest
from warm_agentrl import AGENTRL, agentrl


@pytest.mark.slow
def test_output_and_status_are_the_same(tmp_path):
    for words in (["--version"], ["nothing"], ["train", "+experiment=nothing"]):
        starts = [[*start, *words] for start in (AGENTRL, agentrl())]
        one, other = (subprocess.run(start, cwd=tmp_path, capture_output=True, text=True) for start in starts)
        assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)
