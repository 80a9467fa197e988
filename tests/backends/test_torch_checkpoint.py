"""Checkpoints that are truncated, foreign or cannot be written give one line with the file and what to do."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_models import make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch import checkpoint
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError

STATE = "trainer_state/state.pt"


def load(path: Path, lora_rank: int = 0) -> TorchBackend:
    model = ModelConfig(path=str(path), lora_rank=lora_rank)
    return load_torch_backend(model, ActorConfig(device="cpu"), total_updates=1, seed=0)


def refusal(backend: TorchBackend, path: Path) -> str:
    before = [value.clone() for _, value in backend.weights()]
    with pytest.raises(ConfigError) as caught:
        asyncio.run(backend.load(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith(checkpoint.REMEDY)
    assert all(torch.equal(old, new) for old, (_, new) in zip(before, backend.weights(), strict=True))
    return str(caught.value)


@pytest.fixture(params=[0, 4], ids=["whole", "lora"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TorchBackend, Path]:
    """A backend and its checkpoint; the backend was trained further afterwards."""
    backend = load(save_model(tmp_path / "model"), request.param)
    asyncio.run(backend.save(tmp_path / "step-1"))
    asyncio.run(backend.train_step(make_samples(3), PolicyLoss("sft")))
    return backend, tmp_path / "step-1"


def test_weights_have_the_file_mode_of_other_files(run: tuple[TorchBackend, Path]):
    _, path = run
    assert len({file.stat().st_mode & 0o777 for file in path.rglob("*") if file.is_file()}) == 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_truncated_state_is_refused(run: tuple[TorchBackend, Path], share: float):
    backend, path = run
    file = path / STATE
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    assert f"{STATE} is truncated or not a file of agentrl" in refusal(backend, path)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("content", [{"step": 3}, [1, 2], "text"])
def test_foreign_state_file_is_refused(run: tuple[TorchBackend, Path], content: object):
    backend, path = run
    torch.save(content, path / STATE)
    assert f"{STATE} is truncated or not a file of agentrl" in refusal(backend, path)
    (path / STATE).write_text("text")
    assert f"{STATE} is truncated or not a file of agentrl" in refusal(backend, path)


def test_missing_state_or_weights_are_refused(run: tuple[TorchBackend, Path]):
    backend, path = run
    (weights,) = path.glob("*.safetensors")
    weights.rename(path / "elsewhere")
    assert "no weights" in refusal(backend, path) or f"no {weights.name}" in refusal(backend, path)
    (path / "elsewhere").rename(weights)
    (path / STATE).unlink()
    assert f"{STATE} is missing" in refusal(backend, path)


@pytest.mark.parametrize("num_bytes", [3, 4000])
def test_truncated_weights_are_refused(run: tuple[TorchBackend, Path], num_bytes: int):
    backend, path = run
    (weights,) = path.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:num_bytes])
    assert f"cannot load '{weights}'" in refusal(backend, path)


def test_checkpoint_of_another_model_is_refused(tmp_path: Path):
    backend = load(save_model(tmp_path / "model"))
    other = load(save_model(tmp_path / "other", "llama"))
    asyncio.run(other.save(tmp_path / "step-1"))
    assert "its weights belong to another model, such as '" in refusal(backend, tmp_path / "step-1")


def assert_last_one_stands(folder: Path, error: str) -> None:
    assert "\n" not in error
    assert error.startswith(f"cannot write '{folder / 'step-1'}' (")
    assert error.endswith("MiB are free there); the previous content is unchanged")
    assert [path.name for path in folder.iterdir()] == ["step-1"]
    assert checkpoint.read_state(folder / "step-1").keys() == {"optimizer", "random", "frozen"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB, if this user may mount one."""
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(tmp_path / "disk")]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk")
    yield tmp_path / "disk"
    subprocess.run(["umount", "-l", str(tmp_path / "disk")], check=True)


@pytest.mark.parametrize("left_kib", [0, 60, 200], ids=["folder", "weights", "state"])
def test_save_on_a_full_disk_is_refused(small_disk: Path, left_kib: int, tmp_path: Path):
    backend = load(save_model(tmp_path / "model"))
    asyncio.run(backend.train_step(make_samples(3), PolicyLoss("sft")))
    asyncio.run(backend.save(small_disk / "step-1"))
    (small_disk / "filled").write_bytes(bytes(shutil.disk_usage(small_disk).free - left_kib * 1024))
    with pytest.raises(ConfigError) as caught:
        asyncio.run(backend.save(small_disk / "step-1"))
    (small_disk / "filled").unlink()
    assert_last_one_stands(small_disk, str(caught.value))
    asyncio.run(backend.save(small_disk / "step-2"))  # saving works again once there is space


SAVE_UNDER_A_LIMIT = """
import asyncio, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_torch_checkpoint import load
from agentrl.errors import ConfigError
backend = load(Path(sys.argv[2]))
asyncio.run(backend.save(Path(sys.argv[3])))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    asyncio.run(backend.save(Path(sys.argv[3])))
except ConfigError as error:
    print(error)
asyncio.run(backend.close())
"""


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_bytes", [300, 40_000])
def test_save_beyond_a_file_size_limit_keeps_the_previous_checkpoint(tmp_path: Path, num_bytes: int):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    words = [str(Path(__file__).parent), str(save_model(tmp_path / "model")), str(folder / "step-1"), str(num_bytes)]
    done = subprocess.run(
        [sys.executable, "-c", SAVE_UNDER_A_LIMIT, *words], capture_output=True, text=True, check=True
    )
    assert_last_one_stands(folder, done.stdout.strip())
