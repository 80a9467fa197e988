"""The values that a run chooses for options left open by the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.resolve import ModelFacts, notices, resolve, table
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

BIG = ModelFacts(600_000_000, 32768)


def config(**sections: dict[str, Any]) -> RunConfig:  # Any: the value of any key
    return RunConfig.model_validate({"model": {"path": "m"}, **sections})


def chosen(facts: ModelFacts = BIG, **sections: dict[str, Any]) -> dict[str, object]:
    return {key: value for key, value, _ in resolve(config(**sections), facts)[1]}


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("grpo", 8),
        ("gspo", 8),
        ("pairwise", 8),
        ("online_dpo", 8),
        ("rft", 8),
        ("gae", 1),
        ("remax", 1),
        ("reinforce_plus_plus", 1),
    ],
)
def test_the_group_size_follows_the_algorithm(name, n):
    assert chosen(algorithm={"name": name})["rollout.n"] == n
    assert "rollout.n" not in chosen(algorithm={"name": name}, rollout={"n": 4})


def test_an_algorithm_that_reads_rows_has_no_groups_and_ignores_a_given_size():
    assert "rollout.n" not in chosen(algorithm={"name": "sft"})
    shared = config(algorithm={"name": "sft"}, rollout={"n": 8})
    assert notices(shared) == ["rollout.n=8 is ignored: sft trains on data rows and samples no rollouts"]
    assert notices(config(rollout={"n": 8})) == []


@pytest.mark.parametrize(
    ("turns", "loop"),
    [
        ({}, "single_turn_agent"),
        ({"function_tool_path": "t.py"}, "tool_agent"),
        ({"tool_config_path": "t.yaml"}, "tool_agent"),
        ({"interaction_config_path": "u.yaml"}, "tool_agent"),
    ],
)
def test_tools_choose_the_agent_loop(turns, loop):
    assert chosen(rollout={"multi_turn": turns})["rollout.agent.default_agent_loop"] == loop


@pytest.mark.parametrize(
    ("name", "size", "lora", "rate"),
    [
        ("grpo", 600_000_000, 0, 1e-6),
        ("grpo", 70_000_000_000, 0, 1e-6),
        ("grpo", 600_000_000, 16, 1e-5),
        ("grpo", 50_000_000, 0, 1e-5),
        ("grpo", 460_544, 0, 5e-4),
        ("grpo", None, 0, 1e-6),
        ("sft", 600_000_000, 0, 2e-5),
        ("sft", 600_000_000, 16, 2e-4),
        ("dpo", 600_000_000, 0, 1e-6),
        ("reward_pairs", 600_000_000, 0, 1e-5),
    ],
)
def test_the_learning_rate_follows_method_size_and_lora(name, size, lora, rate):
    model = {"path": "m", "lora_rank": lora}
    assert chosen(ModelFacts(size), algorithm={"name": name}, model=model)["actor.optim.lr"] == pytest.approx(rate)
    assert "actor.optim.lr" not in chosen(actor={"optim": {"lr": 3e-6}})


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ({}, (256, 256)),
        ({"max_prompt_length": 400}, (400, 112)),
        ({"max_response_length": 500}, (12, 500)),
        ({"max_prompt_length": 200, "max_response_length": 300}, (200, 300)),
    ],
)
def test_default_lengths_fit_the_model(given, lengths):
    data = resolve(config(data=given), ModelFacts(context=512))[0].data
    assert (data.max_prompt_length, data.max_response_length) == lengths


def test_lengths_that_fit_stay_and_given_ones_that_do_not_are_refused():
    assert not any(key.startswith("data.") for key in chosen())
    with pytest.raises(ConfigError, match=r"context \(512 tokens\) is shorter than .*, 400 \+ 200"):
        resolve(config(data={"max_prompt_length": 400, "max_response_length": 200}), ModelFacts(context=512))


def test_resolved_configuration_has_no_null_choices():
    once, choices = resolve(config(), ModelFacts(1_000_000, 512))
    assert {choice.key for choice in choices} == {
        *("rollout.n", "rollout.agent.default_agent_loop", "actor.optim.lr"),
        *("data.max_prompt_length", "data.max_response_length"),
    }
    again = RunConfig.model_validate(once.model_dump(mode="json"))
    assert resolve(again, ModelFacts(1_000_000, 512)) == (once, [])


def test_evaluation_does_not_choose_training_options():
    assert [choice.key for choice in resolve(config(), BIG, "eval")[1]] == ["rollout.agent.default_agent_loop"]


def test_each_choice_is_a_line_with_its_reason():
    lines = table(resolve(config(), BIG)[1]).splitlines()
    assert "rollout.n=8" in lines[1]
    assert lines[1].endswith("grpo compares the rollouts of a task")
    assert "actor.optim.lr=1e-06" in lines[2]
    assert lines[2].endswith("usual for RL, all weights, 600M parameters")
