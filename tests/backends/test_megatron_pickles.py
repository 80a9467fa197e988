"""Tensors that a process with megatron-core pickles are read by processes without it, such as SGLang servers."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

from agentrl.backends.megatron.platform import prepare

READ = "import pickle, sys; print(pickle.load(sys.stdin.buffer).tolist(), 'megatron' in sys.modules)"


@pytest.mark.megatron
def test_a_pickled_tensor_is_read_without_megatron():
    prepare()
    pickled = pickle.dumps(torch.tensor([1.0, 2.0]), protocol=5)
    done = subprocess.run([sys.executable, "-c", READ], input=pickled, capture_output=True, check=True)
    assert done.stdout.decode().split("\n")[0] == "[1.0, 2.0] False"
