from __future__ import annotations

from large_models import config_of
from large_models import shape_of as content_of

from agentrl.config.resolve import with_values
from agentrl.plan.counts import shape_of
from agentrl.plan.layout import Servers, servers_of
from agentrl.plan.memory.serving import engine_of


def engine(name: str, servers: Servers | None = None, **values: object):
    config = with_values(config_of(name), {key.replace("__", "."): value for key, value in values.items()})
    return engine_of(config, shape_of(content_of(name)), servers or servers_of(config))


def test_a_token_takes_keys_and_values_of_all_layers():
    assert engine("qwen3_8b").kv_token == 2 * 2 * 8 * 128 * 36


def test_a_device_has_at_least_one_head_and_all_latent_vectors():
    sixteen = Servers(embedded=False, tensor=16)
    assert engine("qwen3_8b", sixteen).kv_token == 2 * 2 * 128 * 36
    assert engine("deepseek_v3", sixteen).kv_token == 2 * 576 * 61


def test_the_rollouts_of_a_step_are_divided_over_the_servers():
    found = engine("qwen3_8b")  # 1024 tasks x 5, at most 1024 at a time, on 4 servers
    assert (found.running, found.longest) == (256, 1536)
    assert engine("qwen3_8b", rollout__max_num_seqs=32).running == 32


def test_the_cache_is_what_the_weights_leave():
    found = engine("qwen3_8b")
    assert found.tokens_in(found.weights - 1) == 0
    assert found.tokens_in(found.weights + 100.5 * found.kv_token) == 100
    assert engine("qwen3_8b", rollout__max_kv_tokens=7).tokens_in(1e12) == 7
