from __future__ import annotations

import asyncio
import time

import pytest

from agentrl.concurrency import run
from agentrl.errors import ConfigError, DataError
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.gsm8k import Gsm8kInteraction
from agentrl.interactions.loading import load_interactions
from agentrl.interactions.session import InteractionSession
from agentrl.tools.base import InfraError
from agentrl.types.task import Task


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(run, "GRACE_S", 0.2)


class Recorder(BaseInteraction):
    def __init__(self, config=None):
        super().__init__({"name": "recorder", **(config or {})})
        self.log = []

    async def start_interaction(self, instance_id=None, **kwargs):
        self.log.append(("start", kwargs))
        return "id"

    async def generate_response(self, instance_id, messages, **kwargs):
        self.log.append(("respond", instance_id, messages[-1]["content"], kwargs))
        return True, "bye", 0.5, {}

    async def finalize_interaction(self, instance_id, **kwargs):
        self.log.append(("finalize", instance_id))


def row(**kwargs):
    return Task(messages=[], index=4, interaction_kwargs=kwargs)


SAID = [{"role": "assistant", "content": "72"}]


def talk(interaction, timeout_s=5.0, **kwargs):
    async def main():
        async with InteractionSession({interaction.name: interaction}, row(**kwargs), timeout_s=timeout_s) as session:
            return await session.respond(SAID), await session.score()

    return asyncio.run(main())


def test_interaction_methods_are_called_in_order():
    user = Recorder()
    assert talk(user, name="recorder", goal="x") == ((True, "bye", 0.5, None), 0.0)
    assert user.log == [("start", {"goal": "x"}), ("respond", "id", "72", {"goal": "x"}), ("finalize", "id")]


def test_simulated_user_may_set_the_observation_key():
    class Placed(Recorder):
        async def generate_response(self, instance_id, messages, **kwargs):
            return False, "and now?", 0.0, {"observation_key": 7, "other": 1}

    assert talk(Placed())[0].observation_key == "7"


def test_verls_methods_without_arguments_are_served():
    class Bare(Recorder):
        async def calculate_score(self):
            return 0.25

        async def finalize_interaction(self):
            self.log.append("finalized")

    user = Bare()
    assert talk(user)[1] == 0.25
    assert user.log[-1] == "finalized"


async def raises(self, *args, **kwargs):
    raise OSError("service is down")


async def hangs(self, *args, **kwargs):
    await asyncio.sleep(60)


async def blocks(self, *args, **kwargs):
    time.sleep(0.5)  # noqa: ASYNC251  # the mistake under test


async def wrong(self, *args, **kwargs):
    return "just text"


@pytest.mark.parametrize(
    ("method", "fault", "message"),
    [
        ("start_interaction", raises, "interaction 'recorder', start_interaction raised OSError: service is down"),
        ("generate_response", raises, "generate_response raised OSError: service is down"),
        ("generate_response", hangs, "generate_response took longer than 0.1 seconds"),
        ("generate_response", blocks, "generate_response took longer than 0.1 seconds"),
        ("generate_response", wrong, "returned 'just text', expected"),
        ("calculate_score", wrong, "returned the score 'just text'"),
    ],
)
def test_failures_are_infra_errors_and_the_end_is_always_reported(method, fault, message):
    user = type("Bad", (Recorder,), {method: fault})()
    with pytest.raises(InfraError) as caught:
        talk(user, timeout_s=0.1)
    assert message in str(caught.value)
    assert (("finalize", "id") in user.log) == (method != "start_interaction")


@pytest.mark.parametrize("fault", [raises, hangs])
def test_failing_tool_release_is_ignored(fault, caplog):
    user = type("Bad", (Recorder,), {"finalize_interaction": fault})()
    assert talk(user, timeout_s=0.1) == ((True, "bye", 0.5, None), 0.0)
    assert len(caplog.records) == 1


def test_end_is_reported_on_cancellation():
    user = Recorder()

    async def main():
        entered = asyncio.Event()

        async def rollout():
            async with InteractionSession({"recorder": user}, row()):
                entered.set()
                await asyncio.sleep(60)

        running = asyncio.create_task(rollout())
        await entered.wait()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(main())
    assert user.log[-1] == ("finalize", "id")


def test_rows_name_their_interaction():
    users = {"recorder": Recorder(), "other": Recorder()}
    with pytest.raises(DataError, match=r"row 4: .*unknown interaction 'recoder': did you mean 'recorder'"):
        InteractionSession(users, row(name="recoder"))
    with pytest.raises(DataError, match=r"row 4: .*no interaction is named: valid: other, recorder"):
        InteractionSession(users, row())


def test_gsm8k_interaction_reports_whether_the_answer_is_correct():
    user = Gsm8kInteraction({"name": "gsm8k"})
    assert talk(user, ground_truth="72")[0] == (True, "Your response is correct!", 1.0, None)
    done, text, score, _ = talk(user, ground_truth="71")[0]
    assert (done, score) == (False, 0.0)
    assert "try again" in text
    with pytest.raises(DataError, match="ground_truth must be a number"):
        talk(user)


def test_verl_yaml_is_loaded(tmp_path):
    path = tmp_path / "users.yaml"
    path.write_text("""
interaction:
  - name: math
    class_name: agentrl.interactions.gsm8k.Gsm8kInteraction
    config: {patience: 3}
  - class_name: agentrl.interactions.gsm8k.Gsm8kInteraction
""")
    users = load_interactions(path)
    assert list(users) == ["math", "gsm8k"]
    assert users["math"].config == {"patience": 3, "name": "math"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("interactions: []", "expected a list under 'interaction', found interactions"),
        ("interaction: [{name: a}]", r"interaction\[0\]: needs a 'class_name'"),
        ("interaction: [{class_name: a.B, conf: {}}]", "unknown key 'conf': did you mean 'config'"),
        ("interaction: [{class_name: verl.interactions.X}]", "belongs to verl"),
        ("interaction: [{class_name: agentrl.interactions.gsm8k.Gsm9kInteraction}]", "did you mean 'Gsm8kInteraction'"),
        (
            "interaction: [{class_name: agentrl.interactions.gsm8k.Gsm8kInteraction},"
            " {class_name: agentrl.interactions.gsm8k.Gsm8kInteraction}]",
            "two interactions have the name 'gsm8k'",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    path = tmp_path / "users.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_interactions(path)
