"""Seconds of the trainer against hand counts."""

from __future__ import annotations

import pytest
from large_models import shape_of as content_of

from agentrl.config.megatron import MegatronConfig
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import Hardware
from agentrl.plan.layout import Layout
from agentrl.plan.shapes import Shape
from agentrl.plan.time.flops import attention_flops, forward_flops
from agentrl.plan.time.passes import Passes
from agentrl.plan.time.training import Training
from agentrl.types.sample import Sample

FAST = Hardware(
    name="Fast",
    memory_gib=80,
    peak_tflops={"bf16": 1000},
    share_of_peak=0.5,
    memory_gb_s=1e9,
    link_gb_s=1e9,
    network_gb_s=1e9,
    link_latency_us=0,
    network_latency_us=0,
    devices_per_node=8,
)
SLOW_LINK = FAST.model_copy(update={"link_gb_s": 100, "network_gb_s": 10})


def shape(name: str = "qwen3_8b") -> Shape:
    found = shape_of(content_of(name))
    assert found is not None
    return found


def samples(*lengths: int) -> list[Sample]:
    return [Sample(range(n), (), (), (), rollout_id=str(i), uid=str(i)) for i, n in enumerate(lengths)]


def megatron(devices: int, **sizes: int) -> Layout:
    names = {
        "tensor": "tensor_model_parallel_size",
        "pipeline": "pipeline_model_parallel_size",
        "context": "context_parallel_size",
        "expert": "expert_model_parallel_size",
        "chunks": "virtual_pipeline_model_parallel_size",
    }
    values = {names[name]: size for name, size in sizes.items()}
    return Layout(kind="megatron", devices=devices, megatron=MegatronConfig(**values))


def test_one_device_takes_three_forward_passes():
    trainer = Training(shape(), Layout(kind="torch"), FAST, Passes(max_tokens=4000))
    seconds = 3 * forward_flops(shape(), [4000, 3000]) / 500e12
    assert trainer.learn_s(samples(4000, 3000)) == pytest.approx(seconds, rel=1e-4)


def test_recomputation_takes_a_fourth_pass_and_lora_leaves_one_out():
    def seconds(**changes: bool) -> float:
        passes = Passes(max_tokens=4000, **changes)
        return Training(shape(), Layout(kind="torch"), FAST, passes).learn_s(samples(4000))

    assert seconds(recompute=True) == pytest.approx(4 / 3 * seconds(), rel=1e-4)
    assert seconds(frozen=True) == pytest.approx(2 / 3 * seconds(), rel=1e-4)


def test_scores_are_forward_passes():
    trainer = Training(shape(), Layout(kind="torch"), FAST, Passes(max_tokens=4000, num_scored=2))
    assert trainer.score_s(samples(4000)) == pytest.approx(2 / 3 * trainer.learn_s(samples(4000)), rel=1e-4)


def test_data_parallel_ranks_wait_for_the_longest():
    one, two = (Training(shape(), megatron(num), FAST, Passes(max_tokens=8000)) for num in (1, 2))
    assert two.learn_s(samples(4000, 4000)) == pytest.approx(one.learn_s(samples(4000)), rel=1e-3)
    assert two.learn_s(samples(8000, 1000)) == pytest.approx(one.learn_s(samples(8000)), rel=1e-3)


@pytest.mark.parametrize(("chunks", "bubble"), [(1, 3), (3, 1)])
def test_the_bubble_is_that_of_1f1b(chunks, bubble):
    """Narayanan et al. 2021: 4 stages, 8 micro-batches take (8 + 3 / chunks) / 4 of the time of one device."""
    sizes = {"pipeline": 4, **({"chunks": chunks} if chunks > 1 else {})}
    piped = Training(shape(), megatron(4, **sizes), FAST, Passes(max_tokens=1000))
    alone = Training(shape(), megatron(1), FAST, Passes(max_tokens=1000))
    work = samples(*[1000] * 8)
    assert piped.learn_s(work) == pytest.approx(alone.learn_s(work) / 8 * (8 + bubble) / 4, rel=1e-3)


def test_tensor_parallel_bytes_by_hand():
    """Forward and backward: 2 all-reduces each per layer of tokens x hidden x 2 bytes, 2 x 3 / 4 on the link."""
    near, far = (Training(shape(), megatron(4, tensor=4), each, Passes(max_tokens=1000)) for each in (FAST, SLOW_LINK))
    extra = far.micro_batch_s([range(1000)], 3) - near.micro_batch_s([range(1000)], 3)
    size = 1000 * 4096 * 2
    assert extra == pytest.approx(2 * 36 * 2 * (2 * 3 / 4 * size) / 100e9, rel=1e-3)


def test_gradients_by_hand():
    """Four data-parallel copies of 8.19 billion weights: float32 gradients one way, bf16 weights the other."""
    trainer = Training(shape(), megatron(4), SLOW_LINK, Passes())
    assert trainer.gradients_s() == pytest.approx(0.75 * (4 + 2) * shape().weights.total / 100e9, rel=1e-3)


def test_experts_are_exchanged_over_the_network_if_they_span_nodes():
    of_model = shape("qwen3_30b_a3b")
    inside, outside = (
        Training(of_model, megatron(16, expert=expert), SLOW_LINK, Passes(max_tokens=1000)) for expert in (8, 16)
    )
    assert outside.micro_batch_s([range(1000)], 3) > 2 * inside.micro_batch_s([range(1000)], 3)


def test_small_micro_batches_are_limited_by_reading_weights():
    slow = FAST.model_copy(update={"memory_gb_s": 1000, "share_of_bandwidth": 1})
    trainer = Training(shape(), Layout(kind="torch"), slow, Passes())
    weights = shape().weights
    read = (2 * 3 + 2 * 4) * (weights.total - weights.embeddings)
    assert trainer.micro_batch_s([range(10)], 3) == pytest.approx(read / 1e12, rel=1e-3)


def test_fsdp_gathers_beside_the_computation_on_gpus_only():
    layout = Layout(kind="fsdp", devices=8, fsdp_size=8)
    beside = Training(shape(), layout, SLOW_LINK, Passes(max_tokens=4000))
    after = Training(shape(), layout, SLOW_LINK.model_copy(update={"overlaps": False}), Passes(max_tokens=4000))
    gathered = 2 * 7 / 8 * 2 * shape().weights.total / 100e9
    compute = 3 * forward_flops(shape(), [4000]) / 500e12
    assert beside.micro_batch_s([range(4000)], 3) == pytest.approx(max(compute, gathered), rel=1e-3)
    assert after.micro_batch_s([range(4000)], 3) == pytest.approx(compute + gathered, rel=1e-3)


@pytest.mark.parametrize("updates", [1, 4])
@pytest.mark.parametrize("layout", [Layout(kind="torch"), megatron(8, tensor=2, pipeline=2)])
def test_equal_samples_take_what_an_equal_division_takes(layout, updates):
    trainer = Training(shape(), layout, FAST, Passes(num_scored=1, updates=updates, max_tokens=2000))
    step = samples(*[1000] * 64)
    attention = 64 * attention_flops(shape(), 1000)
    assert trainer.even_s(64_000, attention) == pytest.approx(trainer.score_s(step) + trainer.learn_s(step), rel=1e-3)


def test_shared_tokens_are_not_computed_but_attended_to():
    trainer = Training(shape(), Layout(kind="torch"), FAST, Passes())
    part, whole = (trainer.micro_batch_s([positions], 3) for positions in (range(900, 1000), range(1000)))
    without = trainer.micro_batch_s([range(100)], 3)
    assert without < part < whole
