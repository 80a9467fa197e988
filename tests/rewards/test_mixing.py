"""Reward mixtures: weights, gates, priorities, skipped components, and failures that must not count as 0."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_server import JudgeServer, Reply, serving
from pydantic import ValidationError

from agentrl.config import validate_config
from agentrl.config.reward import RewardConfig
from agentrl.config.reward_sources import ComponentConfig, asked_order
from agentrl.config.rules.combinations import check_training
from agentrl.errors import ConfigError, DataError, RewardError, UnknownNameError
from agentrl.rewards.base import NoVerdictError, close_reward
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.rewards.mixing import Mixture
from agentrl.tools.base import InfraError
from agentrl.types.task import Task


def saying(value, asked=None, name=""):
    """A reward that returns `value`: a number, a dict, None for no verdict, or an error."""

    async def reward(data_source, solution_str, ground_truth, extra_info):
        await asyncio.sleep(0)
        if asked is not None:
            asked.append(name)
        if isinstance(value, Exception):
            raise value
        if value is None:
            raise NoVerdictError("nothing to say")
        return value if isinstance(value, dict) else {"score": value}

    return reward


def mix(components, values):
    """(rewards, or the error; sorted names of the components that were called)."""
    asked = []
    parsed = RewardConfig.model_validate({"components": {n: {"reward": "r"} | each for n, each in components.items()}})
    mixture = Mixture(parsed.components, {name: saying(value, asked, name) for name, value in values.items()})
    try:
        return asyncio.run(mixture("sums", "text", "5", {"index": 3})), sorted(asked)
    except Exception as error:
        return error, sorted(asked)


def test_weighted_sum_keeps_every_component():
    found, _ = mix(
        {"right": {}, "style": {"weight": 0.5}, "long": {"weight": -2}}, {"right": 1, "style": 0.8, "long": 0.1}
    )
    assert found == {"score": pytest.approx(1.2), "right": 1, "style": 0.8, "long": 0.1}
    found, _ = mix({"right": {}, "judged": {"weight": 0.0}}, {"right": 0.5, "judged": {"score": 1.0, "depth": 3.0}})
    assert found == {"score": 0.5, "right": 0.5, "judged": 1.0, "judged/depth": 3.0}


@pytest.mark.parametrize(("gate", "score", "asked"), [(1.0, 1.4, ["judge", "right"]), (0.9, 0.9, ["right"])])
def test_components_behind_a_closed_gate_are_not_called(gate, score, asked):
    components = {"judge": {"weight": 0.5, "gate": "right"}, "right": {}}
    found, who = mix(components, {"right": gate, "judge": 0.8})
    assert (found["score"], who) == (pytest.approx(score), asked)
    assert ("judge" in found) == ("judge" in asked)


def test_gate_without_a_score_is_closed():
    found, asked = mix({"right": {}, "a": {}, "b": {"gate": "right"}}, {"right": None, "a": 0.5, "b": 1.0})
    assert (found, asked) == ({"score": 0.5, "a": 0.5}, ["a", "right"])


CHAIN = {"rule": {"priority": 1}, "judge": {"priority": 2, "weight": 0.5}, "last": {"priority": 3}}


@pytest.mark.parametrize(
    ("values", "found", "asked"),
    [
        ({"rule": 0.0, "judge": 1.0, "last": 1.0}, {"score": 0.0, "rule": 0.0}, ["rule"]),
        ({"rule": None, "judge": 1.0, "last": 1.0}, {"score": 0.5, "judge": 1.0}, ["judge", "rule"]),
        ({"rule": None, "judge": None, "last": 0.25}, {"score": 0.25, "last": 0.25}, ["judge", "last", "rule"]),
    ],
)
def test_the_first_verdict_counts_and_no_other_component_is_called(values, found, asked):
    assert mix(CHAIN, values) == (found, asked)


def test_rule_may_decide_only_success():
    components = {"rule": {"priority": 1, "verdict_from": 1.0}, "judge": {"priority": 2}}
    assert mix(components, {"rule": 1.0, "judge": 0.3}) == ({"score": 1.0, "rule": 1.0}, ["rule"])
    doubted = {"score": 0.3, "rule": 0.2, "judge": 0.3}
    assert mix(components, {"rule": 0.2, "judge": 0.3}) == (doubted, ["judge", "rule"])
    # no other component has a verdict: the rule's verdict counts
    assert mix(components, {"rule": 0.1, "judge": None})[0] == {"score": 0.1, "rule": 0.1}


@pytest.mark.parametrize("error", [InfraError("the judge is down"), RewardError("no finite number")])
def test_failing_component_does_not_count_as_zero(error):
    found, _ = mix({"right": {}, "judge": {}}, {"right": 1.0, "judge": error})
    assert type(found) is type(error)
    assert str(found) == f"component 'judge': {error}"


def test_run_errors_take_precedence_over_rollout_errors():
    found, _ = mix({"a": {}, "b": {}}, {"a": InfraError("down"), "b": RewardError("broken")})
    assert str(found) == "component 'b': broken"


def test_no_component_score_means_no_score():
    found, _ = mix({"a": {}, "b": {"gate": "a"}}, {"a": None, "b": 1.0})
    assert isinstance(found, InfraError)
    assert "row 3 of 'sums': no component of the reward returned a verdict" in str(found)


def test_independent_components_run_concurrently():
    meeting = asyncio.Barrier(2)

    async def waiting(*_):
        await asyncio.wait_for(meeting.wait(), 5)
        return {"score": 1.0}

    components = {name: ComponentConfig(reward="r") for name in ("a", "b")}
    assert asyncio.run(Mixture(components, dict.fromkeys(components, waiting))("", "", "", {}))["score"] == 2.0


@given(
    st.dictionaries(
        st.sampled_from("abcde"), st.tuples(st.none() | st.integers(1, 9), st.none() | st.sampled_from("abcde"))
    )
)
def test_every_component_runs_after_its_dependencies(drawn):
    components = {
        name: ComponentConfig(reward="r", priority=priority, gate=gate if gate in drawn else None)
        for name, (priority, gate) in drawn.items()
    }
    try:
        order = asked_order(components)
    except ValueError:  # a reference cycle
        return
    assert sorted(order) == sorted(components)
    for name, each in components.items():
        assert each.gate is None or order.index(each.gate) < order.index(name)
        for other, better in components.items():
            if None not in (each.priority, better.priority) and better.priority < each.priority:
                assert order.index(other) < order.index(name)


@pytest.mark.parametrize(
    ("components", "said"),
    [
        ({"a": {"reward": "r", "wieght": 2}}, "unknown key 'wieght': did you mean 'weight'"),
        (
            {"a": {"reward": "r", "gate": "rigth"}, "right": {"reward": "r"}},
            "unknown component 'rigth': did you mean 'right'",
        ),
        ({"a": {"reward": "r", "gate": "b"}, "b": {"reward": "r", "gate": "a"}}, "depend on each other"),
        ({"a": {"reward": "r", "gate": "a"}}, "depend on each other"),
        (
            {"a": {"reward": "r", "priority": 1, "gate": "b"}, "b": {"reward": "r", "priority": 2}},
            "depend on each other",
        ),
        ({"a": {"reward": "r", "weight": 0}}, "every weight is 0"),
        ({"score": {"reward": "r"}}, "'score' is not a valid component name"),
        ({"a/b": {"reward": "r"}}, "'a/b' is not a valid component name"),
        ({"a": {"reward": "r", "priority": 1}, "b": {"reward": "r", "priority": 1}}, "the same priority: a, b"),
        ({"a": {"reward": "r", "priority": 1, "verdict_from": 1}}, "no effect on the last component"),
        ({"a": {"reward": "r", "verdict_from": 1}}, "no effect without priority"),
        ({"a": {"reward": "r", "gate_threshold": 1}}, "no effect without gate"),
        ({"a": {"reward": "r", "weight": float("inf")}}, "finite"),
    ],
)
def test_contradictory_mixtures_are_refused(components, said):
    with pytest.raises(ValidationError, match=said):
        RewardConfig.model_validate({"components": components})


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({"name": "gsm8k", "components": {"a": {"reward": "gsm8k"}}}, r"'reward\.name' has no effect together with"),
        ({"judge": {"url": "http://localhost"}}, r"'reward\.judge\.url' has no effect without 'reward\.name=judge'"),
        ({"components": {"a": {"reward": "r", "wieght": 2}}}, r"'reward\.components\.a': unknown key 'wieght'"),
    ],
)
def test_options_without_effect_are_refused(reward, said):
    with pytest.raises(ConfigError, match=said):
        check_training(validate_config({"model": {"path": "m"}, "reward": reward}))


def loaded(**components):
    return load_reward(RewardConfig.model_validate({"components": components}))


@pytest.mark.parametrize(
    ("component", "error", "said"),
    [
        ({"reward": "gsm9k"}, UnknownNameError, r"reward\.components\.a: unknown reward 'gsm9k'.*gsm8k"),
        ({"reward": "no/file.py:f"}, ConfigError, r"reward\.components\.a: .*no/file\.py"),
        (
            {"reward": "gsm8k", "reward_kwargs": {"scor": 2}},
            ConfigError,
            r"reward\.components\.a: .*did you mean 'score'",
        ),
        ({"reward": "judge"}, ConfigError, r"reward\.components\.a: reward judge needs 'reward\.judge\.url'"),
        (
            {"reward": "judge", "reward_kwargs": {"ulr": "x"}},
            ConfigError,
            r"reward\.judge has no such key: did you mean 'url'",
        ),
        ({"reward": "judge", "reward_kwargs": {"url": "x"}}, ConfigError, r"reward_kwargs\.url: expected an address"),
    ],
)
def test_a_component_that_cannot_be_used_is_named(component, error, said):
    with pytest.raises(error, match=said):
        loaded(a=component)


def test_rules_files_and_judges_together(tmp_path):
    (tmp_path / "own.py").write_text(
        "def short(solution_str, most=10):\n    return None if not solution_str else float(len(solution_str) <= most)\n"
    )
    with serving(JudgeServer([Reply('{"reason": "", "score": 5}')])) as server:
        reward = loaded(
            right={"reward": "gsm8k", "reward_kwargs": {"method": "flexible"}},
            short={"reward": f"{tmp_path}/own.py:short", "weight": 0.1, "reward_kwargs": {"most": 20}},
            style={"reward": "judge", "gate": "right", "reward_kwargs": {"url": server.url, "model": "j"}},
        )
        right = asyncio.run(reward("sums", "It is 5", "5", {}))
        wrong = asyncio.run(reward("sums", "", "5", {}))
        close_reward(reward)
    assert right == {"score": pytest.approx(1.6), "right": 1.0, "short": 1.0, "style": 0.5, "style/verdict/score": 5.0}
    assert wrong == {"score": 0.0, "right": 0.0}  # the file's function has no verdict for an empty answer
    assert len(server.bodies) == 1


def test_rows_without_a_rule_are_scored_by_other_components(tmp_path):
    (tmp_path / "own.py").write_text("def half():\n    return 0.5\n")
    chain = {"rule": {"reward": "auto", "priority": 1}, "own": {"reward": f"{tmp_path}/own.py:half", "priority": 2}}
    config = RewardConfig.model_validate({"components": chain})
    check_data_source(config, Task([], data_source="mine"))
    reward = load_reward(config)
    assert asyncio.run(reward("mine", "#### 5", "5", {})) == {"score": 0.5, "own": 0.5}
    assert asyncio.run(reward("gsm8k", "#### 5", "5", {})) == {"score": 1.0, "rule": 1.0}
    close_reward(reward)
    with pytest.raises(DataError, match="there is no built-in reward for data_source 'mine'"):
        check_data_source(
            RewardConfig.model_validate({"components": {"a": {"reward": "auto"}}}), Task([], data_source="mine")
        )
