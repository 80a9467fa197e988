from __future__ import annotations

import pytest
from large_models import config_of
from large_models import shape_of as content_of

from agentrl.config.actor import ActorConfig, OptimConfig
from agentrl.config.megatron import MegatronConfig
from agentrl.plan.counts import shape_of
from agentrl.plan.layout import Layout, layout_of
from agentrl.plan.memory.precision import Precision
from agentrl.plan.memory.state import own_weights, state_of
from agentrl.plan.shapes import Weights, sum_of

HALF, SINGLE = Precision(2, 2), Precision(4, 4)
QWEN = shape_of(content_of("qwen3_8b"))


def state(layout, precision=HALF, **options):
    return state_of(QWEN, layout, precision, ActorConfig(**options), stage=0, trained=True)


def test_one_device_holds_weights_gradients_and_two_averages():
    found = state(Layout(kind="torch"), SINGLE)
    assert (found.weights, found.gradients, found.optimizer) == pytest.approx([8_190_735_360 * n for n in (4, 4, 8)])


def test_muon_keeps_one_number_for_a_hidden_matrix():
    outer = QWEN.outer.embeddings + QWEN.outer.head + QWEN.weights.norms
    found = state(Layout(kind="torch"), SINGLE, optim=OptimConfig(name="muon"))
    assert found.optimizer == 4 * (QWEN.weights.total + outer)


def test_shards_are_equal_parts():
    found = state(Layout(kind="fsdp", devices=8, fsdp_size=4))
    assert found.weights == pytest.approx(2 * QWEN.weights.total / 4, rel=1e-6)


def test_the_distributed_optimizer_divides_averages_and_float32_copies():
    layout = Layout(kind="megatron", devices=4)
    found = state(layout)
    total = QWEN.weights.total
    assert (found.weights, found.gradients) == (2 * total, 4 * total)
    assert found.optimizer == pytest.approx(12 * total / 4)
    whole = Layout(kind="megatron", devices=4, megatron=MegatronConfig(use_distributed_optimizer=False))
    assert state(whole).optimizer == 12 * total


@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "qwen3_235b_a22b", "deepseek_v3", "glm_4_5"])
def test_the_devices_of_a_copy_hold_all_weights(name):
    shape, layout = shape_of(content_of(name)), layout_of(config_of(name))
    stages = [own_weights(shape, layout, stage) for stage in range(layout.pipeline)]
    experts = sum(stage.experts for stage in stages) * layout.expert * layout.expert_tensor
    assert experts == shape.weights.experts
    assert sum(stage.norms for stage in stages) == shape.weights.norms
    assert layout.tensor * stages[-1].head == shape.outer.head
    assert layout.tensor * sum(stage.dense for stage in stages) == shape.weights.dense


def test_trained_layers_for_multi_token_prediction_are_on_the_last_stage():
    shape, layout = shape_of(content_of("deepseek_v3")), layout_of(config_of("deepseek_v3"))
    last = layout.pipeline - 1
    for stage in (0, last):
        without, found = (own_weights(shape, layout, stage, ahead=ahead) for ahead in (False, True))
        more = sum_of(shape.mtp) if stage == last else Weights()
        assert found.experts - without.experts == more.experts // layout.expert
        assert found.norms - without.norms == more.norms
    sizes = [
        state_of(shape, layout, HALF, ActorConfig(megatron=megatron), stage=last, trained=trained).weights
        for megatron in (layout.megatron, layout.megatron.model_copy(update={"mtp_loss_scaling_factor": 0.1}))
        for trained in (True, False)
    ]
    assert sizes[2] > sizes[0] == sizes[1] == sizes[3]
