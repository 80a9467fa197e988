"""Routed experts are read back unchanged from mapped memory; damage, loss and mix-ups are noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from stored_runs import group, rollout
from torch import Tensor

from agentrl.errors import DataError
from agentrl.store import TrajectoryStore
from agentrl.store import trajectories as store_module
from agentrl.store.routed_experts import experts_path
from agentrl.types.rollout import Group


def with_experts(most: int = 250) -> list[Group]:
    """Two groups; the first rollout has no routed experts."""
    groups = [group("a", rollout(0), rollout(1)), group("b/0 \ud83d", rollout(0, 1.0))]
    for number, kept in enumerate((groups[0].rollouts[1], groups[1].rollouts[0])):
        experts = torch.arange(18, dtype=torch.int32).view(3, 3, 2) + most - 17 - 5 * number
        kept.trajectories[0].keep_routed_experts(experts)
    return groups


def experts_of(groups: list[Group]) -> list[Tensor | None]:
    return [
        trajectory.routed_experts
        for group in groups
        for rollout in group.rollouts
        for trajectory in rollout.trajectories
    ]


def assert_alike(groups: list[Group], others: list[Group]) -> None:
    for one, other in zip(experts_of(groups), experts_of(others), strict=True):
        assert (one is None) == (other is None)
        assert one is None or (torch.equal(one, other) and one.dtype == other.dtype)


@given(st.integers(22, 4000))
@settings(max_examples=20)
def test_routed_experts_round_trip_with_the_smallest_dtype(tmp_path_factory, most):
    folder = tmp_path_factory.mktemp("store")
    store, groups = TrajectoryStore(folder), with_experts(most)
    store.write(1, [Group(groups[0].task, []), *groups])  # a group without rollouts writes no row
    assert_alike(store.groups(1), groups)
    assert {tensor.dtype for tensor in load_file(experts_path(store.file(1))).values()} == {
        torch.int16 if number > 255 else torch.uint8 for number in (most, most - 5)
    }


def test_no_experts_file_without_routed_experts(tmp_path: Path):
    store = TrajectoryStore(tmp_path)
    store.write(1, with_experts())
    store.write(1, [group("a", rollout(0))])
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001.parquet"]
    assert experts_of(store.groups(1)) == [None]


def test_truncate_removes_later_steps_and_partial_files(tmp_path: Path, monkeypatch):
    store = TrajectoryStore(tmp_path)
    for step in (1, 2):
        store.write(step, with_experts())
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_batches", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.write(3, with_experts())
    assert experts_path(tmp_path / "step-000003.parquet").exists()
    store.truncate(1)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000001.parquet", "step-000001.experts.safetensors"}
    assert_alike(store.groups(1), with_experts())


def flip(content: bytearray, place: int) -> bytes:
    content[place] ^= 1
    return bytes(content)


def longer(content: bytearray) -> bytes:
    """A different header with correct checksums, as from another write."""
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    header = json.dumps(entries, indent=1).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda content: flip(content, -1), "a value changed since it was written"),
        (lambda content: flip(content, 40), "the routed experts do not belong to 'step-000001.parquet'"),
        (longer, "the routed experts do not belong to"),
        (lambda content: content[:-1], "cannot read routed experts"),
        (lambda content: content[:9], "its header is cut off"),
        (None, "the routed experts of 'step-000001.parquet' are missing"),
    ],
)
def test_damage_is_detected(tmp_path: Path, damage, complaint):
    store = TrajectoryStore(tmp_path)
    beside = experts_path(store.write(1, with_experts()))
    if damage:
        beside.write_bytes(damage(bytearray(beside.read_bytes())))
    else:
        beside.unlink()
    with pytest.raises(DataError, match=complaint) as error:
        store.groups(1)
    assert str(beside) in str(error.value)


def test_conversation_readers_load_no_routed_experts(tmp_path: Path):
    store = TrajectoryStore(tmp_path)
    experts_path(store.write(1, with_experts())).unlink()
    assert len(list(store.scan())) == 3
    assert store.rollout(1, "a", 1).rollout.trajectories[0].routed_experts is None
