"""Sent weights: checked names, cast matrices, and buckets that keep related tensors together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engines.sglang.weights.buckets import Bucket, ReusedMemory, buckets_of, checked

SHAPES = {"model.norm.weight": (3,), "model.layers.0.self_attn.q_proj.weight": (2, 3)}


def ones() -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.ones(shape)) for name, shape in SHAPES.items()]


def unpacked(bucket: Bucket) -> dict[str, torch.Tensor]:
    """Unpacks a bucket as sglang/srt/weight_sync/tensor_bucket.py does."""
    tensors, start = {}, 0
    for entry in bucket.entries:
        end = start + entry.num_bytes
        tensors[entry.name] = bucket.data[start:end].view(entry.dtype).reshape(entry.shape)
        start = end
    assert start == bucket.data.numel()
    return tensors


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([("model.norm.wieght", torch.ones(3))], r"no weight 'model.norm.wieght': did you mean 'model.norm.weight'"),
        ([("model.norm.weight", torch.ones(4))], r"weight 'model.norm.weight' has shape \(4,\), expected \(3,\)"),
        ([*ones(), ones()[0]], "weight 'model.norm.weight' is given twice"),
    ],
)
def test_weights_unknown_to_the_server_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        list(checked(weights, SHAPES, None))


def test_matrices_are_cast_and_vectors_are_not():
    cast = dict(checked(ones(), SHAPES, torch.bfloat16))
    assert [cast[name].dtype for name in SHAPES] == [torch.float32, torch.bfloat16]
    assert {tensor.dtype for _, tensor in checked(ones(), SHAPES, None)} == {torch.float32}


def test_buckets_are_copies():
    weights = ones()
    (bucket,) = buckets_of(checked(weights, SHAPES, None), 100)
    weights[0][1].zero_()
    assert unpacked(bucket)["model.norm.weight"].tolist() == [1, 1, 1]


def test_memory_of_earlier_buckets_is_used_again():
    memory = ReusedMemory()
    first, second = memory(8), memory(16)
    memory.reuse()
    assert (memory(16).data_ptr(), memory(8).data_ptr()) == (second.data_ptr(), first.data_ptr())
    addresses = {memory(8).data_ptr(), memory(8).data_ptr()}
    assert len(addresses) == 2
    assert not addresses & {first.data_ptr(), second.data_ptr()}


def test_modules_are_not_split_across_shards():
    """DeepSeek's server fuses these two tensors if they arrive together."""
    names = [f"model.layers.{i}.self_attn.{part}.weight" for i in range(2) for part in ("q_a_proj", "kv_a_proj")]
    buckets = list(buckets_of(((name, torch.ones(100)) for name in names), 10))
    assert [[entry.name for entry in bucket.entries] for bucket in buckets] == [names[:2], names[2:]]


DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64])
TENSORS = st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=3), DTYPES)


@given(st.lists(TENSORS, max_size=12), st.integers(1, 200))
def test_buckets_contain_all_weights(kinds, num_bytes):
    weights = [
        (f"layers.{layer}.part.w{i}", torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype) + i)
        for i, (layer, shape, dtype) in enumerate(kinds)
    ]
    buckets = list(buckets_of(iter(weights), num_bytes))
    found = {name: tensor for bucket in buckets for name, tensor in unpacked(bucket).items()}
    assert found.keys() == dict(weights).keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in weights)
