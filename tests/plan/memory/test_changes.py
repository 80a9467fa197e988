"""Wrong configurations are answered with changes that fit, and that the rules accept."""

from __future__ import annotations

import pytest
from large_models import PUBLISHED, config_of
from large_models import shape_of as content_of

from agentrl.cli.compose import compose_config
from agentrl.config.resolve import with_values
from agentrl.config.run import RunConfig
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import GIB
from agentrl.plan.layout import num_used
from agentrl.plan.memory.changes import changes_for
from agentrl.plan.memory.fit import fit_of
from agentrl.plan.shapes import Shape

H100 = 79.6 * GIB
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
LENGTHS = (
    *("data.max_prompt_length=1024", "data.max_response_length=64512", "actor.ppo_max_token_len_per_gpu=65536"),
    "ref.param_offload=false",
)
ONE_SERVER = (
    *("data.max_prompt_length=1024", "data.max_response_length=31744", "data.train_batch_size=64", "rollout.n=8"),
    *("rollout.sglang.num_replicas=1", "trainer.n_gpus_per_node=8", "actor.ulysses_sequence_parallel_size=4"),
    *("actor.ppo_max_token_len_per_gpu=32768", "actor.ppo_mini_batch_size=64"),
)


def shape(content: dict[str, object]) -> Shape:
    found = shape_of(content)
    assert found is not None
    return found


def checked(config: RunConfig, model: Shape, memory: float) -> list[str]:
    """Return the changes; apply each on the command line, as a user does, and see that the run fits."""
    changes = changes_for(config, model, memory)
    for change in changes:
        assert fit_of(with_values(config, change.values), model, memory).fits
    return [change.text for change in changes]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PUBLISHED)
def test_what_the_authors_ran_fits(name):
    assert fit_of(config_of(name), shape(content_of(name)), H100).fits


def test_70b_on_one_card_of_24_gb():
    config, model = compose_config(["model.path=x"]), shape(LLAMA_70B)
    assert not fit_of(config, model, 24 * GIB).fits
    found = checked(config, model, 24 * GIB)
    assert all("trainer.nnodes" in each and "tp_size" in each for each in found)
    assert any("model.lora_rank" in each for each in found)


@pytest.mark.slow
def test_changes_say_how_many_devices_they_need():
    config, model = compose_config(["model.path=x"]), shape(LLAMA_70B)
    changes = changes_for(config, model, 24 * GIB, num_devices=8)
    assert changes
    for change in changes:
        assert change.needs == num_used(with_values(config, change.values)) > 8
        assert str(change.needs) in change.shown.removeprefix(change.text)
    assert all(not each.needs for each in changes_for(config, model, 24 * GIB))


@pytest.mark.slow
@pytest.mark.parametrize("per_node", [4, 8])
def test_more_devices_are_on_nodes_of_the_stated_size(per_node):
    config, model = compose_config(["model.path=x", "trainer.nnodes=2"]), shape(LLAMA_70B)
    changes = [each.values for each in changes_for(config, model, 24 * GIB, per_node=per_node)]
    more = [each for each in changes if "trainer.n_gpus_per_node" in each]
    assert more
    for each in more:
        trainer = with_values(config, each).trainer
        assert trainer.n_gpus_per_node <= per_node
        assert trainer.nnodes == -(-trainer.num_processes // per_node)


def test_64k_tokens_without_sequence_parallelism():
    config, model = compose_config(["+experiment=qwen3_8b", *LENGTHS]), shape(content_of("qwen3_8b"))
    fit = fit_of(config, model, H100)
    assert fit.uses[0].largest == "activations"
    assert not fit.uses[0].fits
    assert "actor.ulysses_sequence_parallel_size=2" in checked(config, model, H100)[0]


def test_512_rollouts_of_32k_tokens_on_one_server():
    config, model = compose_config(["+experiment=qwen3_8b", *ONE_SERVER]), shape(content_of("qwen3_8b"))
    fit = fit_of(config, model, H100)
    assert (fit.worst.device, fit.worst.largest, fit.running) == ("engine", "KV cache", 512)
    assert fit.at_once is not None
    assert fit.at_once < 30
    found = checked(config, model, H100)
    assert any("rollout.sglang.num_replicas" in each for each in found)
    assert any("rollout.max_num_seqs" in each for each in found)


def test_a_run_that_fits_needs_no_change():
    (change,) = changes_for(config_of("qwen3_8b"), shape(content_of("qwen3_8b")), H100)
    assert change.values == {}


def test_weights_that_are_not_resharded_are_complete_on_each_device():
    model = shape(content_of("qwen3_8b"))
    parts = [
        fit_of(compose_config(["+experiment=qwen3_8b", *LENGTHS, *words]), model, H100).uses[0]
        for words in ([], ["actor.reshard_after_forward=false"])
    ]
    more = parts[1].parts["gathered weights"] - parts[0].parts["gathered weights"]
    assert more > 4 * model.weights.total  # gradients in float32
