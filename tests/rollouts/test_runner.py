"""One rollout: its limits, releases of tools, and who is at fault for an error."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from loop_builders import TASK, TOKENIZER, ListEngine, add, call, config, roll, runner

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers import tool_parsers
from agentrl.config.reward import RewardConfig
from agentrl.engines.base import SamplingParams
from agentrl.errors import ConfigError, DataError, RewardError
from agentrl.interactions.base import BaseInteraction
from agentrl.rollouts import runner as runner_module
from agentrl.tools.base import BaseTool, InfraError, ToolResponse
from agentrl.tools.function import as_tool
from agentrl.types.rollout import Outcome, Rollout, Stop

SUM = call("add", a=2, b=3)


@pytest.fixture
def own(monkeypatch):
    def own(run):
        cls = type("Own", (AgentLoop,), {"run": run})
        monkeypatch.setitem(agent_loops._objects, "own", cls)
        return config("own")

    return own


def test_engine_returns_partial_tokens_at_the_deadline():
    engine = ListEngine(SUM, None)
    rollout = roll(engine, config(rollout_timeout_s=0.05))
    assert rollout.stop is Stop.DEADLINE
    assert [len(segment) for segment in rollout.trajectories[0].segments][-1] == 2
    assert [each.outcome for each in rollout.tool_calls] == [Outcome.OK]
    assert "score" in rollout.rewards
    assert engine.released


async def hang(x: int) -> str:
    """Hang.

    Args:
        x: a number.
    """
    await asyncio.sleep(60)
    return "late"


def test_tool_past_the_deadline_is_cut_and_tokens_are_kept(monkeypatch):
    monkeypatch.setattr(runner_module, "GRACE_S", 0.01)
    engine = ListEngine(call("hang", x=1))
    rollout = roll(engine, config(rollout_timeout_s=0.05), tools=[hang])
    assert rollout.stop is Stop.DEADLINE
    assert [each.outcome for each in rollout.tool_calls] == [Outcome.ABORTED]
    assert rollout.trajectories[0].num_turns == 1
    assert engine.released


def test_abort_before_the_deadline_is_not_a_deadline_stop():
    class Aborting(ListEngine):
        async def generate(self, request):
            return await super().generate(replace(request, deadline_s=0.0))

    assert roll(Aborting(None), config()).stop is Stop.ABORTED


def test_a_loop_that_raises_is_a_failed_rollout(own, caplog):
    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        return {}["answer"]

    rollout = roll(ListEngine("5"), own(run))
    line = run.__code__.co_firstlineno + 3
    assert (rollout.stop, rollout.error) == (Stop.ERROR, f"KeyError: 'answer' ({__file__}:{line})")
    assert (rollout.infra_failed, rollout.rewards, rollout.reward) == (False, {}, 0.0)
    assert rollout.trajectories[0].num_turns == 1  # turns before the error stay visible
    assert caplog.records[0].levelno == logging.WARNING


def test_errors_of_a_loops_own_task_group_are_unwrapped(own):
    async def run(self, task, generate, tools, interaction, sampling):
        async def fail():
            raise InfraError("the sandbox is gone")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    rollout = roll(ListEngine(), own(run))
    assert rollout.error.startswith("InfraError: the sandbox is gone")
    assert rollout.infra_failed


def test_loop_that_continues_after_its_end_is_cut_at_the_deadline(own, monkeypatch):
    monkeypatch.setattr(runner_module, "GRACE_S", 0.01)

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        while True:
            await chat.model_turn()

    limited = own(run)
    multi_turn = limited.rollout.multi_turn.model_copy(update={"max_assistant_turns": 1, "rollout_timeout_s": 0.05})
    rollout_config = limited.rollout.model_copy(update={"multi_turn": multi_turn})
    rollout = roll(ListEngine("done"), limited.model_copy(update={"rollout": rollout_config}))
    assert rollout.stop is Stop.DEADLINE
    assert rollout.trajectories[0].num_turns == 1


def test_timeout_error_of_the_loop_is_an_error_not_the_deadline(own):
    async def run(self, task, generate, tools, interaction, sampling):
        async with asyncio.timeout(0.001):
            await asyncio.sleep(1)

    rollout = roll(ListEngine(), own(run))
    assert (rollout.stop, rollout.error.split(" ")[0]) == (Stop.ERROR, "TimeoutError:")


def test_user_error_ends_the_run(own):
    async def run(self, task, generate, tools, interaction, sampling):
        raise ConfigError.keyless("rollout.x: no")

    with pytest.raises(ConfigError, match=r"rollout\.x: no"):
        roll(ListEngine(), own(run))


def test_a_reward_that_fails_ends_the_run():
    async def reward(data_source, solution_str, ground_truth, extra_info):
        raise RewardError("reward 'x' raised")

    with pytest.raises(RewardError, match="reward 'x' raised"):
        roll(ListEngine("5"), config(), reward=reward)


def test_reward_service_failure_is_an_infra_failure():
    async def reward(data_source, solution_str, ground_truth, extra_info):
        raise InfraError("the judge is down")

    rollout = roll(ListEngine("5"), config(), reward=reward)
    assert (rollout.infra_failed, rollout.error, rollout.valid) == (True, "reward: the judge is down", False)


def test_reward_gets_the_documented_inputs():
    shown = {}

    async def reward(data_source, solution_str, ground_truth, extra_info):
        shown.update(data_source=data_source, solution=solution_str, ground_truth=ground_truth, **extra_info)
        return {"score": 0.5, "style": 0.25}

    task = replace(TASK, extra_info={"level": 3})
    rollout = roll(ListEngine(SUM, "5"), config(), task, reward=reward)
    guards = {f"guard/{name}": 0.0 for name in ("repetition", "format_only", "grader_injection", "answer_spam")}
    assert rollout.rewards == {"score": 0.5, "style": 0.25, **guards}
    assert (shown["data_source"], shown["ground_truth"], shown["level"]) == ("sums", "5", 3)
    assert shown["solution"] == f"{SUM}\n5"
    assert shown["num_turns"] == 2


def test_a_loop_may_score_itself(own):
    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        rollout = chat.rollout()
        rollout.rewards["score"] = float(task.extra_info["given"])
        return rollout

    task = replace(TASK, extra_info={"given": 0.125})
    assert roll(ListEngine("5"), own(run), task).rewards == {"score": 0.125}
    with pytest.raises(RewardError, match="row 0 of 'sums': the score is nan"):
        roll(ListEngine("5"), own(run), replace(TASK, extra_info={"given": "nan"}))
    bounded = own(run).model_copy(update={"reward": RewardConfig(range=(0, 1))})
    with pytest.raises(RewardError, match=r"row 0 of 'sums': the score 1\.5 lies outside reward\.range, 0 to 1"):
        roll(ListEngine("5"), bounded, replace(TASK, extra_info={"given": 1.5}))


def test_without_a_reward_there_is_no_score():
    assert roll(ListEngine("5"), config(), reward=None).rewards == {}


class Counter(BaseTool):
    """Counts its calls, and gets a reward for them."""

    def __init__(self):
        super().__init__({}, as_tool(hang).schema)
        self.log = []

    async def create(self, instance_id=None, **kwargs):
        self.log.append("create")
        return "one", ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        self.log.append("execute")
        return ToolResponse("counted"), 0.5, {}

    async def calc_reward(self, instance_id, **kwargs):
        return 2.0

    async def release(self, instance_id, **kwargs):
        self.log.append("release")


def test_tool_rewards_and_release():
    tool = Counter()
    rollout = roll(ListEngine(call("hang", x=1), "5"), config(), tools=[tool])
    assert tool.log == ["create", "execute", "release"]
    assert rollout.tool_rewards == {"hang": 2.0}
    assert [each.reward for each in rollout.tool_calls] == [0.5]


class Ended(BaseInteraction):
    ended = 0

    async def generate_response(self, instance_id, messages, **kwargs):
        raise RuntimeError("no answer")

    async def finalize_interaction(self, instance_id, **kwargs):
        self.ended += 1


def test_a_simulated_user_that_fails_is_not_the_policys_fault():
    user = Ended({})
    rollout = roll(ListEngine("5"), config(), interactions={"user": user})
    assert (rollout.stop, rollout.infra_failed, user.ended) == (Stop.ERROR, True, 1)
    assert "no answer" in rollout.error


def test_a_row_that_names_no_simulated_user_among_several():
    with pytest.raises(DataError, match=r"row 0: .* no interaction is named"):
        roll(ListEngine("5"), config(), interactions={"a": Ended({}), "b": Ended({})})


def test_cancelling_releases_everything():
    second_turn = asyncio.Event()

    class Hanging(ListEngine):
        async def generate(self, request):
            if self.requests:
                second_turn.set()
            return await super().generate(request)

    tool, user, engine = Counter(), Ended({}), Hanging(call("hang", x=1), None)

    async def run():
        rolls = runner(engine, config(), tools=[tool], interactions={"user": user})
        task = asyncio.create_task(rolls.run(TASK, SamplingParams(), seed=0))
        await second_turn.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert tool.log == ["create", "execute", "release"]
    assert user.ended == 1
    assert engine.released == [engine.requests[0].session]


def test_loop_that_cancels_itself_is_a_failed_rollout(own):
    async def run(self, *args):
        waiting = asyncio.create_task(asyncio.sleep(60))
        waiting.cancel()
        await waiting

    rollout = roll(ListEngine(), own(run))
    assert (rollout.stop, rollout.error) == (Stop.ERROR, "RuntimeError: the loop cancelled itself")


def test_a_rows_tool_options_hold_for_its_rollouts():
    options = {"available_tools": ["add"], "max_tool_calls": 1}
    row = replace(TASK, extra_info={"tool_config": options})
    rollout = roll(ListEngine(SUM, SUM, SUM), config(), row, tools=[hang, add])
    assert [each.outcome for each in rollout.tool_calls] == [Outcome.OK, Outcome.LIMIT_ERROR, Outcome.LIMIT_ERROR]
    assert rollout.stop is Stop.MAX_TOOL_CALLS
    assert '"hang"' not in TOKENIZER.decode(rollout.trajectories[0].segments[0].token_ids)


def test_a_rows_tool_format_reads_its_turns(monkeypatch):
    class Shouting:
        stop = ()

        def parse(self, text):
            return ParsedTurn(text, (ParsedCall("add", '{"a": 2, "b": 3}'),) if "ADD" in text else ())

    monkeypatch.setitem(tool_parsers._objects, "shouting", Shouting)
    row = replace(TASK, extra_info={"tool_config": {"tool_format": "shouting"}})
    rolls = runner(ListEngine("ADD", "5", "ADD"), config())
    with_format, as_configured = (asyncio.run(rolls.run(task, SamplingParams(), seed=0)) for task in (row, TASK))
    assert [each.result for each in with_format.tool_calls] == ["5"]
    assert as_configured.tool_calls == []


def test_rollouts_are_reproducible():
    first, second = (roll(ListEngine(SUM, "5"), config(), seed=5) for _ in range(2))
    assert first.seed == 5
    assert tokens_of(first) == tokens_of(second)


def tokens_of(rollout: Rollout):
    return [segment for trajectory in rollout.trajectories for segment in trajectory.segments], rollout.rewards
