"""`actor.megatron.overlap_grad_reduce`: gradients summed during the backward pass equal those of one process."""

from __future__ import annotations

import asyncio
import os
from functools import partial

import pytest
import torch
from megatron_models import (
    assert_equal_gradients,
    expected_gradients,
    gradients,
    in_one_process,
    layout_of,
    make_request,
)
from rank_processes import NUM_RANKS, on_cpu, run_again
from tiny_models import make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.fsdp.ranks import Ranks

pytestmark = pytest.mark.megatron

LAYOUTS = {
    1: {"": ("qwen3",)},
    2: {
        "dp": ("qwen3", "deepseek_v3"),
        "dp replicated": ("qwen3_moe",),
        "dp hybrid": ("qwen3_moe",),
        "ep2": ("deepseek_v3",),
        "cp2": ("qwen3",),
        "tp2": ("qwen3_moe",),
        "pp2": ("qwen3",),
    },
    4: {"pp2 dp": ("qwen3",), "pp2 ep2": ("deepseek_v3",), "tp2 ep2 etp1": ("qwen3_moe",)},
}[NUM_RANKS]
LOSSES = (PolicyLoss("vanilla"), PolicyLoss("kl_cov"))  # the second needs all samples: two passes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("loss", LOSSES, ids=["one pass", "two passes"])
@pytest.mark.parametrize("case", [f"{family}: {layout}" for layout, of in LAYOUTS.items() for family in of])
def test_overlapped_sums_have_the_gradients_of_one_process(start, tmp_path, case, loss):
    family, layout = case.split(": ")
    request = make_request(save_model(tmp_path, family), megatron=layout_of(layout) | {"overlap_grad_reduce": True})
    backend, alone = start(request), in_one_process(request)
    for samples in (make_samples(7), make_samples(5, 1)):
        assert_equal_gradients(gradients(backend, samples, loss), expected_gradients(alone, samples, loss))
    asyncio.run(backend.score(samples))
    assert_equal_gradients(gradients(backend, samples, loss), expected_gradients(alone, samples, loss))


def divide_gradients(_: Ranks, bucket_size: int | None) -> None:
    """Sum gradients in buckets of this number of values; None: megatron-core's number, more than the models have."""
    from megatron.core.distributed import DistributedDataParallelConfig

    from agentrl.backends.megatron.training import gradients as module

    module.DistributedDataParallelConfig = partial(DistributedDataParallelConfig, bucket_size=bucket_size)


@pytest.mark.parametrize("layout", [*LAYOUTS][:1])
def test_sums_in_several_buckets_equal_those_of_one_process(ranks, start, tmp_path, layout):
    request = make_request(save_model(tmp_path), megatron=layout_of(layout) | {"overlap_grad_reduce": True})
    ranks.each(divide_gradients, [(4000,)] * ranks.size)
    try:
        backend, alone = start(request), in_one_process(request)
    finally:
        ranks.each(divide_gradients, [(None,)] * ranks.size)
    assert len(backend._model.passes.chunks[0].bucket_groups) > 2
    for seed in range(2):
        samples = make_samples(6, seed)
        found = gradients(backend, samples, LOSSES[0])
        assert_equal_gradients(found, expected_gradients(alone, samples, LOSSES[0]))
        for each in (backend, alone):
            asyncio.run(each.train_step(samples, LOSSES[0]))
    weights = dict(on_cpu(alone.weights()))
    for name, value in on_cpu(backend.weights()):
        torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", [*LAYOUTS][:1])
def test_steps_equal_those_of_one_process(start, tmp_path, layout):
    request = make_request(save_model(tmp_path), megatron=layout_of(layout) | {"overlap_grad_reduce": True})
    backend, alone = start(request), in_one_process(request)
    for step in range(4):
        samples = make_samples(1 if step == 2 else 6, step)  # of one sample, a process has none
        found, expected = (asyncio.run(each.train_step(samples, LOSSES[0])).metrics for each in (backend, alone))
        for name in ("loss", "grad_norm", "lr"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("overlaps", [True, False])
def test_the_sum_starts_in_the_backward_pass_of_the_last_micro_batch(start, tmp_path, monkeypatch, overlaps):
    backend = start(make_request(save_model(tmp_path), megatron={"overlap_grad_reduce": overlaps}))
    from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup as Sums

    from agentrl.backends.megatron.training.optimizer import LayoutOptimizer

    asyncio.run(backend.train_step(make_samples(3), LOSSES[0]))  # in the first, megatron-core counts gradients
    events: list[str] = []

    def recording(owner: type, name: str) -> None:
        call = getattr(owner, name)

        def recorded(*args: object, **options: object) -> object:
            events.append(name)
            return call(*args, **options)

        monkeypatch.setattr(owner, name, recorded)

    recording(Sums, "start_grad_sync")
    recording(LayoutOptimizer, "sum_gradients")
    assert asyncio.run(backend.train_step(make_samples(7), LOSSES[0])).metrics["num_micro_batches"] > 2
    assert events == ["start_grad_sync", "sum_gradients"][:: 1 if overlaps else -1]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1", "4"])
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_overlap_on_other_numbers_of_ranks(size):
    run_again(__file__, size)
