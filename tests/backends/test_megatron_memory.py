"""No process holds more than its part of a model, while it loads and while it is published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.megatron, pytest.mark.slow]


@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="the script starts its own ranks")
@pytest.mark.parametrize("layout", ["tp2", "tp2 bridge", "pp2", "ep2"])
def test_no_process_holds_more_than_its_part_and_one_bucket(tmp_path, layout):
    script = Path(__file__).with_name("loading_memory.py")
    done = subprocess.run([sys.executable, script, tmp_path, layout], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["loading"]) == len(found["publishing"]) == 2
    assert max(found["loading"]) < 0.6, found  # half of the weights, and parts of one weight
    assert max(found["publishing"]) < 1.5, found  # the bucket, and parts of one weight
