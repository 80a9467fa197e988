import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.models.loading import find_device


def test_auto_device_prefers_a_gpu():
    assert find_device("auto", "rollout.device").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert find_device("cpu", "rollout.device").type == "cpu"


def test_a_missing_device_is_named_with_its_key():
    with pytest.raises(ConfigError, match=r"rollout.device 'abacus'"):
        find_device("abacus", "rollout.device")
