"""The loader inside a server: what it loads, keeps and reports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from fake_server import FakeModel

from agentrl.engines.sglang.weights.buckets import Bucket, buckets_of
from agentrl.engines.sglang.weights.delta import Update, update_of
from agentrl.engines.sglang.weights.server_loader import CHECKSUMS, NOT_HELD, load

START_S = 240.0
NOTHING = torch.empty(0, dtype=torch.uint8)


def bucket(value: float, *, rows: int = 3) -> Bucket:
    """A bfloat16 matrix, a float32 vector and a number; `value` changes one value of each."""
    matrix = torch.ones(rows, 4, dtype=torch.bfloat16)
    matrix[1, 2] = value
    vector = torch.tensor([1.0, value])
    (packed,) = buckets_of([("a.w", matrix), ("a.b", vector), ("a.scale", torch.tensor(value))], 1 << 20)
    return packed


def send(model: FakeModel, update: Update, number: int = 0, count: int = 1, *, complete: bool = False) -> None:
    data = update.bucket.data if complete or update.difference is None else update.difference
    request = update.request(number, count, complete=complete)
    load(model, [(json.dumps(request), data.clone())])


def loaded(model: FakeModel) -> list[object]:
    weights = model.weights
    return [weights["a.w"][1, 2].item(), weights["a.b"].tolist(), weights["a.scale"].item()]


def test_complete_weights_and_differences_are_loaded():
    model = FakeModel()
    send(model, first := update_of(bucket(2.0), None))
    assert loaded(model) == [2.0, [1.0, 2.0], 2.0]
    second = update_of(bucket(-3.0), first)
    assert len(second.difference) < len(second.bucket.data)
    send(model, second)
    assert loaded(model) == [-3.0, [1.0, -3.0], -3.0]
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in model.weights.items()} == {
        "a.w": (torch.bfloat16, (3, 4)),
        "a.b": (torch.float32, (2,)),
        "a.scale": (torch.float32, ()),
    }
    assert model.get_weights_by_name(CHECKSUMS) == [second.checksum]


def test_a_difference_without_its_base_is_not_loaded():
    model = FakeModel()
    first = update_of(bucket(2.0), None)
    second = update_of(bucket(3.0), first)
    third = update_of(bucket(4.0), second)
    send(model, second)  # a new server
    assert (model.weights, model.get_weights_by_name(CHECKSUMS)) == ({}, [NOT_HELD])
    send(model, first)
    send(model, third)  # a lost update
    assert loaded(model)[0] == 2.0
    assert model.get_weights_by_name(CHECKSUMS) == [NOT_HELD]
    send(model, third, complete=True)
    assert loaded(model)[0] == 4.0


@pytest.mark.parametrize("complete", [True, False])
def test_bytes_that_were_damaged_are_not_loaded(complete):
    model = FakeModel()
    send(model, first := update_of(bucket(2.0), None))
    second = update_of(bucket(3.0), first)
    (second.bucket.data if complete else second.difference)[-1] ^= 1
    send(model, second, complete=complete)
    assert loaded(model)[0] == 2.0
    assert model.get_weights_by_name(CHECKSUMS) == [NOT_HELD]


def test_buckets_that_are_no_longer_sent_are_dropped():
    model = FakeModel()
    update = update_of(bucket(2.0), None)
    for number in range(3):
        send(model, update, number, 3)
    assert model.get_weights_by_name(CHECKSUMS) == [update.checksum] * 3
    send(model, update, 0, 1)
    assert model.get_weights_by_name(CHECKSUMS) == [update.checksum]


def test_other_names_are_answered_by_the_model():
    model = FakeModel()
    model.get_weights_by_name = lambda name, truncate_size, tp_size: [name, truncate_size, tp_size]
    send(model, update_of(bucket(2.0), None))
    assert model.get_weights_by_name("lm_head", 7, tp_size=2) == ["lm_head", 7, 2]
    assert model.get_weights_by_name(CHECKSUMS, 7, tp_size=2) != []
    without = FakeModel()
    send(without, update_of(bucket(2.0), None))
    assert without.get_weights_by_name("lm_head", 7, tp_size=2) is None


RANKS = """
import json, sys, torch
from torch import distributed
sys.path[:0] = json.loads(sys.argv[1])
from fake_server import FakeModel
from test_server_loader import NOTHING, bucket, loaded, update_of
from agentrl.engines.sglang.weights.server_loader import load
rank = int(sys.argv[2])
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
first = update_of(bucket(2.0), None)
second = update_of(bucket(3.0), first)
other = update_of(bucket(4.0), second)
model, seen = FakeModel(), []
for update in (first, second, first, other):
    data = update.bucket.data if update.difference is None else update.difference
    text = json.dumps(update.request(0, 1, complete=False))
    load(model, [(text, data.clone() if rank == 0 else NOTHING)])
    seen.append(loaded(model)[0])
print(seen)
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_first_rank_sends_the_weights_to_the_others(tmp_path):
    command, store = [sys.executable, "-c", RANKS, json.dumps(sys.path)], str(tmp_path / "store")
    ranks = [subprocess.Popen([*command, rank, store], stdout=subprocess.PIPE, text=True) for rank in ("0", "1")]
    try:
        outputs = [process.communicate(timeout=START_S)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    # the last difference has another base: no rank loads it
    assert outputs == ["[2.0, 3.0, 2.0, 2.0]\n"] * 2
