"""Rules for Megatron's parallel layouts."""

from __future__ import annotations

import pytest
from complaints import keys_and_kinds, problems_of

from agentrl.config.megatron import MegatronConfig
from agentrl.errors import Kind


def test_keys_of_a_layout_are_refused_one_by_one_by_other_backends():
    layout = {"tensor_model_parallel_size": 2, "moe_aux_loss_coeff": 0.1}
    assert keys_and_kinds(problems_of(actor={"megatron": layout})) == {
        ("actor.megatron.tensor_model_parallel_size", Kind.UNUSED),
        ("actor.megatron.moe_aux_loss_coeff", Kind.UNUSED),
    }


@pytest.mark.parametrize(
    ("keys", "expert_tensor", "sequence"),
    [
        ({}, 1, False),
        ({"tensor_model_parallel_size": 4}, 4, True),
        ({"tensor_model_parallel_size": 4, "expert_tensor_parallel_size": 1}, 1, True),
        ({"tensor_model_parallel_size": 4, "sequence_parallel": False}, 4, False),
    ],
)
def test_null_follows_the_tensor_parallel_size(keys, expert_tensor, sequence):
    layout = MegatronConfig(**keys)
    assert (layout.expert_tensor_size, layout.sequence_is_parallel) == (expert_tensor, sequence)
