"""Which trajectories of a session are trained, with what weight, and what training makes of it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from loop_builders import TASK, ListEngine, call
from session_builders import Client, session, user

from agentrl.algos.credit import accept, compare, samples_of
from agentrl.config.rollout import GatewayConfig
from agentrl.errors import ConfigError
from agentrl.registry import give
from agentrl.types.rollout import Group


def rolled_out(**gateway):
    """A title, a discarded answer, a sub-agent, and a main conversation that was restarted."""

    async def go():
        engine = ListEngine("Title", call("add", a=1, b=1), call("add", a=1, b=2), "sub", "3", "after the restart")
        made = session(engine, gateway=gateway)
        await Client(made, [{"role": "system", "content": "Title?"}, user("x")], tools=()).ask()
        main = Client(made)
        discarded = await made.answer(main.request())
        made.delivered(discarded.turn_id)
        await main.ask()
        await Client(made, [{"role": "system", "content": "Help."}, user("y")]).ask()
        await main.ask(*main.results("3"))
        await Client(made, [user("Summary")]).ask()
        return made.rollout()

    return asyncio.run(go())


def weights(rollout) -> dict[str, float]:
    def text(trajectory):
        last = trajectory.messages[-1]
        return last["content"] or last["tool_calls"][0]["function"]["arguments"]["b"]

    return {text(each): each.weight for each in rollout.trajectories}


TRAINED = {
    "all": {"Title", 1, "sub", "3", "after the restart"},
    "main": {"3", "after the restart"},
    "continued": {"sub", "3", "after the restart"},
}


@pytest.mark.parametrize("train", TRAINED)
def test_rules_of_training(train):
    found = weights(rolled_out(train=train))
    assert {name for name, weight in found.items() if weight} == TRAINED[train]
    assert list(found)[-2:] == ["3", "after the restart"]


def test_per_trajectory_divides_the_advantage():
    found = weights(rolled_out(credit="per_trajectory"))
    assert found == {"Title": 0.0, 1: 0.0, "sub": 1 / 3, "3": 1 / 3, "after the restart": 1 / 3}


def test_functions_decide():
    def train(candidates):
        return [each.is_discarded or each.num_turns > 1 for each in candidates]

    def credit(candidates):
        return [0.5 if each.is_discarded else 2.0 for each in candidates]

    found = weights(rolled_out(train=give(train), credit=give(credit)))
    assert {name: weight for name, weight in found.items() if weight} == {1: 0.5, "3": 2.0}


def test_a_wrong_result_of_a_function_is_an_error():
    with pytest.raises(ConfigError, match=r"rollout.gateway.credit.* one number for each of 3 trajectories"):
        rolled_out(credit=give(lambda candidates: [1.0]))


def test_weights_scale_advantages_and_untrained_trajectories_have_no_samples():
    rollouts = [rolled_out(), rolled_out(credit="per_trajectory")]
    for rollout, score in zip(rollouts, (1.0, 0.0), strict=True):
        rollout.rewards["score"] = score
    group = Group(TASK, rollouts)
    samples = samples_of([group])
    assert [each.weight for each in samples] == [1.0] * 3 + [1 / 3] * 3
    credited = compare([group], samples, "grpo", {})
    sizes = [max(map(abs, each.advantages)) for each in credited]
    assert sizes == pytest.approx([sizes[0]] * 3 + [sizes[0] / 3] * 3)
    assert [max(each.advantages) for each in accept([group], samples, 1.0)] == [1.0] * 3 + [0.0] * 3


def test_the_functions_of_the_page_decide(tmp_path):
    page = (Path(__file__).parents[2] / "docs/gateway.md").read_text()
    (code,) = (each for each in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if "train" in each)
    (tmp_path / "gateway_rules.py").write_text(code)
    found = weights(
        rolled_out(train=f"{tmp_path}/gateway_rules.py:train", credit=f"{tmp_path}/gateway_rules.py:credit")
    )
    assert found == {"Title": 0.0, 1: 0.0, "sub": 0.0, "3": 1.0, "after the restart": 0.0}


@pytest.mark.parametrize("key", ["train", "credit"])
def test_a_misspelt_rule_is_refused(key):
    with pytest.raises(ValueError, match=r"expected .*, or a function as 'path/to/file.py:name'"):
        GatewayConfig(**{key: "everything"})
