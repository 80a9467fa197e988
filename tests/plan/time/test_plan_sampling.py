"""Seconds of an engine against hand counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_plan_training import FAST, shape

from agentrl.cli.compose import compose_config
from agentrl.plan.layout import Servers
from agentrl.plan.time.sampling import Sampling, max_running, sampling_of

MEMORY = FAST.model_copy(update={"memory_gb_s": 1000, "share_of_bandwidth": 1.0})


def servers(tensor: int = 1) -> Servers:
    return Servers(embedded=False, tensor=tensor)


def test_one_request_reads_the_weights_and_its_kv():
    """Qwen3-8B: 36 layers x 8 KV heads x 128 x 2 numbers of 2 bytes per token."""
    engine, of_model = Sampling(shape(), servers(), MEMORY), shape()
    weights = 2 * (of_model.weights.total - of_model.weights.embeddings)
    assert engine.decode_s(1, 1000) == pytest.approx((weights + 1000 * 36 * 8 * 128 * 2 * 2) / 1e12, rel=1e-3)


def test_more_requests_read_the_weights_once_until_computing_takes_longer():
    engine = Sampling(shape(), servers(), MEMORY)
    assert engine.decode_s(8, 0) == pytest.approx(engine.decode_s(1, 0), rel=1e-3)
    per_token = engine.decode_s(10_000, 0) / 10_000
    assert engine.decode_s(20_000, 0) == pytest.approx(20_000 * per_token, rel=1e-3)


def test_the_servers_of_a_plan_limit_the_requests_and_not_those_of_the_configuration():
    embedded = compose_config(["model.path=x"])
    assert (max_running(embedded, Servers()), max_running(embedded, servers())) == (128, 256)


def test_devices_share_the_work():
    one, four = Sampling(shape(), servers(), MEMORY), Sampling(shape(), servers(4), MEMORY)
    assert four.decode_s(16, 50_000) == pytest.approx(one.decode_s(16, 50_000) / 4, rel=1e-3)


def test_latent_kv_lies_on_every_device():
    of_model = shape("deepseek_v3")
    kv = [Sampling(of_model, servers(tensor), MEMORY).decode_s(1, 10**7) for tensor in (8, 16)]
    weights = [Sampling(of_model, servers(tensor), MEMORY).decode_s(1, 0) for tensor in (8, 16)]
    assert kv[0] - weights[0] == pytest.approx(kv[1] - weights[1], rel=1e-3)


def test_a_large_batch_reads_all_experts_and_one_token_its_own():
    """Qwen3-30B-A3B: 8 of 128 experts; of 2 tokens 128 x (1 - (120 / 128)^2) = 15.5 on average."""
    of_model = shape("qwen3_30b_a3b")
    engine, experts = Sampling(of_model, servers(), MEMORY), of_model.weights.experts
    others = engine.weights_read(0)
    assert engine.weights_read(1) - others == pytest.approx(experts * 8 / 128)
    assert engine.weights_read(2) - others == pytest.approx(experts * 15.5 / 128)
    assert engine.weights_read(1000) - others == pytest.approx(experts)


def test_prefill_is_computed_for_new_tokens_only():
    engine = Sampling(shape(), servers(), MEMORY)
    assert engine.prefill_s(1, 5000) == 0
    assert engine.prefill_s(500, 1000) < engine.prefill_s(500, 9000) < engine.prefill_s(9000, 9000)


def test_data_parallel_parts_share_all_weights_but_attention():
    of_model, whole = shape("qwen3_30b_a3b"), Servers(embedded=False, tensor=8)
    parts = replace(whole, data=4)
    one, each = (Sampling(of_model, servers, MEMORY).decode_s(1000, 0) for servers in (whole, parts))
    assert each - one == pytest.approx(2 * of_model.weights.attention * (1 / 2 - 1 / 8) / 1e12, rel=0.01)


def test_sampling_a_token_takes_its_fixed_time():
    slow = MEMORY.model_copy(update={"row_overhead_ms": 2})
    more = Sampling(shape(), servers(), slow).decode_s(50, 0) - Sampling(shape(), servers(), MEMORY).decode_s(50, 0)
    assert more == pytest.approx(0.1)


def test_fixed_steps_of_decoding_compute_all_their_rows():
    """With `rollout.deterministic`, 1 and 64 rows take the same time, and 65 rows twice as long."""
    plain, fixed = (Sampling(shape(), servers(), MEMORY, fixed_rows=rows) for rows in (0, 64))
    one, full, more = (fixed.decode_s(rows, 0) for rows in (1, 64, 65))
    assert one == full == plain.decode_s(64, 0)
    assert more == pytest.approx(2 * full)


def test_a_deterministic_engine_computes_rows_of_experts_one_by_one():
    config = compose_config(["model.path=x", "rollout.deterministic=true", "rollout.max_num_seqs=32"])
    dense, experts = (sampling_of(config, shape(name), Servers(), MEMORY) for name in ("qwen3_8b", "qwen3_30b_a3b"))
    assert dense.decode_s(1, 0) == dense.decode_s(32, 0) < dense.decode_s(33, 0)
    assert experts.decode_s(8, 0) == pytest.approx(8 * experts.decode_s(1, 0))
