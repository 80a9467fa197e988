"""One object per rollout: order of calls, timeouts, the end of the episode, reward and close."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from environment_builders import environment, play
from tool_builders import Recorder, call, task, until

from agentrl.errors import DataError, RewardError
from agentrl.tools.base import InfraError, ToolError, ToolResponse
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome

PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU\x00\x00\x00\nIDATx"
    b"\x9cc`\x00\x00\x00\x02\x00\x01H\xaf\xa4q\x00\x00\x00\x00IEND\xaeB`\x82"
)


class Shop:
    """Keeps what was bought; every answer is of another kind."""

    opened: ClassVar[list[Shop]] = []

    def reset(self, money=3, seed=None, group_seed=None, task=None, agent_data=None):
        self.money, self.bought, self.given = money, [], (seed, group_seed, task, agent_data)
        self.opened.append(self)
        return f" You have {money}."

    def buy(self, item: str) -> object:
        """Buy."""
        if self.money == 0:
            raise ToolError("no money is left")
        self.money -= 1
        self.bought.append(item)
        answers = {"dict": {"left": self.money}, "triple": ("paid", 0.5, {"n": 1}), "none": None}
        return answers.get(item, f"left: {self.money}")

    async def show(self) -> ToolResponse:
        """Show."""
        await asyncio.sleep(0)
        return ToolResponse(text="a picture", image=[PNG])

    def fail(self, down: bool) -> str:
        """Fail."""
        raise InfraError("the shop is down") if down else ZeroDivisionError("oh")

    def reward(self) -> float:
        return float(len(self.bought))

    def close(self):
        self.closed = threading.current_thread().name


@pytest.fixture(autouse=True)
def nothing_opened(monkeypatch):
    monkeypatch.setattr(Shop, "opened", [])


def test_methods_share_state_and_answer_as_tools_do():
    calls = [call("buy", item=item) for item in ("dict", "triple", "none", "more")]
    played = play(Shop, *calls, call("show"), call("fail", down=False), call("buy", item=1), call("bye"))
    assert played.observation == " You have 3."
    assert [(each.text, each.outcome.value, each.reward) for each in played.results] == [
        ('{"left": 2}', "ok", 0.0),
        ("paid", "ok", 0.5),
        ("None", "ok", 0.0),
        ("Error: no money is left", "tool_error", 0.0),
        ("a picture", "ok", 0.0),
        ("Error: ZeroDivisionError: oh", "tool_error", 0.0),
        ("Error: invalid arguments for 'buy': 'item' must be string, not 1", "format_error", 0.0),
        ("Error: there is no tool 'bye': did you mean 'buy'?", "format_error", 0.0),
    ]
    assert played.results[4].images == [PNG]
    assert played.rewards == {"Shop": 3.0}
    assert Shop.opened[0].closed


def test_each_rollout_has_its_own_object():
    async def main():
        box = Toolbox([environment(Shop)])

        async def rollout(number):
            async with box.session(task(extra_info={"money": number})) as session:
                await session.start()
                results = [await session.call(call("buy", item="x")) for _ in range(number)]
                return results[-1].text

        texts = await asyncio.gather(*(rollout(number) for number in range(1, 6)))
        await box.close()
        return texts

    assert asyncio.run(main()) == ["left: 0"] * 5
    assert sorted(len(shop.bought) for shop in Shop.opened) == [1, 2, 3, 4, 5]


def test_reset_gets_columns_seeds_and_data_that_it_names():
    row = task(extra_info={"money": 1, "other": 2}, uid="g")
    played = play(Shop, row=row, seed=7)
    seed, group_seed, given, data = Shop.opened[0].given
    assert (seed, given, data.environment) == (7, row, Shop.opened[0])
    assert group_seed == play(Shop, row=row, seed=8).session.data.group_seed != seed
    assert played.observation == " You have 1."
    columns = task(extra_info={"seed": 1, "task": "a column"})
    play(Shop, row=columns, seed=7)
    assert Shop.opened[-1].given[0::2] == (1, "a column")
    play(Shop, row=task(tools_kwargs={"Shop": {"create_kwargs": {"money": 9}}}))
    assert Shop.opened[-1].money == 9


class All:
    def reset(self, **kwargs):
        self.kwargs = kwargs

    def act(self) -> str:
        """Act."""
        return repr(sorted(self.kwargs))


def test_reset_with_keywords_gets_the_columns_and_nothing_else():
    played = play(All, call("act"), row=task(extra_info={"target": 1, "text_prompt": True}, ground_truth="x"))
    names = ["data_source", "ground_truth", "prompt", "target", "text_prompt"]
    assert played.results[0].text == repr(names)
    assert played.session.data.environment.kwargs["prompt"] == "q"
    played = play(All)
    assert played.session.data.environment.kwargs["prompt"] == [{"role": "user", "content": "q"}]


class Strict:
    def reset(self, order):
        self.order = order

    def act(self) -> str:
        """Act."""
        return ""


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"extra_info": {"ordr": 1}}, "reset of environment 'Strict' needs 'order', which the row does not have: did"),
        (
            {"tools_kwargs": {"Strict": {"reset_kwargs": {}}}},
            "unknown key 'reset_kwargs': did you mean 'create_kwargs'?",
        ),
        ({"tools_kwargs": {"Strict": {"create_kwargs": 3}}}, "'tools_kwargs.Strict.create_kwargs': expected an object"),
        ({"tools_kwargs": {"Strict": {"create_kwargs": {"ordr": 3}}}}, "does not accept 'ordr': did you mean 'order'?"),
        ({"extra_info": {"order": 1}, "tools_kwargs": {"act": {"create_kwargs": {}}}}, "only reset gets arguments"),
        (
            {"extra_info": {"order": 1}, "tools_kwargs": {"Strickt": {}}},
            "unknown tool 'Strickt': did you mean 'Strict'?",
        ),
    ],
)
def test_a_rows_arguments_are_checked(row, complaint):
    box = Toolbox([environment(Strict)])
    with pytest.raises(DataError) as caught:
        box.check(task(**row))
    assert complaint in str(caught.value)
    box.check(task(extra_info={"order": 1}))
    box.check(task(extra_info={"tool_selection": []}))  # a row without the tools needs no environment


def test_a_row_without_its_tools_has_no_environment():
    played = play(Shop, call("buy", item="x"), row=task(extra_info={"tool_selection": []}))
    assert (played.observation, played.rewards, Shop.opened) == ("", {}, [])
    assert played.results[0].outcome is Outcome.FORMAT_ERROR


@dataclass
class Faulty:
    """Does what it is told in the constructor, or in a method."""

    fault: str = ""
    calls: list = field(default_factory=list)

    def act(self) -> str:
        """Act."""
        self.calls.append("act")
        return "acted"


def faulty(**methods):
    return type("Faulty", (Faulty,), methods)


def raising(error):
    def method(self):
        raise error

    return method


@pytest.mark.parametrize(
    ("reset", "error", "text"),
    [
        (
            raising(KeyError("map")),
            DataError,
            "row 5: reset of environment 'Faulty' raised KeyError: 'map' (",
        ),
        (raising(ToolError("no")), DataError, "row 5: reset of environment 'Faulty' raised ToolError: no"),
        (raising(SystemExit(2)), DataError, "row 5: reset of environment 'Faulty' raised RuntimeError: SystemExit: 2"),
        (raising(InfraError("down")), InfraError, "row 5: reset of environment 'Faulty': down"),
        (raising(DataError("row 5 is bad")), DataError, "row 5 is bad"),
        (lambda self: 3, DataError, "row 5: reset of environment 'Faulty' returned 3, expected text or None"),
    ],
)
def test_a_failing_reset_is_an_error_of_the_row(reset, error, text):
    with pytest.raises(error, match=re.escape(text)):
        play(faulty(reset=reset), call("act"), row=task(index=5))


def test_a_failing_constructor_is_an_error_of_the_row():
    made = []

    def make():
        made.append(1)
        if len(made) > 1:  # the first object is the one that is checked at the start
            raise OSError("full")
        return Faulty()

    with pytest.raises(DataError, match="row 0: the constructor of environment 'World' raised OSError: full"):
        play(make, name="World")


def test_a_reset_that_hangs_drops_the_rollout():
    async def reset(self):
        await asyncio.sleep(60)

    with pytest.raises(InfraError, match=r"reset of environment 'Faulty' did not end within 0\.02 seconds"):
        play(faulty(reset=reset), timeout_s=0.02)


@pytest.mark.parametrize(
    ("reward", "error", "text"),
    [
        (raising(ValueError("x")), RewardError, "row 0: reward of environment 'Faulty' raised ValueError: x"),
        (raising(InfraError("judge")), InfraError, "row 0: reward of environment 'Faulty': judge"),
        (lambda self: float("nan"), RewardError, "returned the reward nan, expected a finite number"),
        (lambda self: "much", RewardError, "returned the reward 'much', expected a finite number"),
    ],
)
def test_a_failing_reward_is_never_a_number(reward, error, text):
    with pytest.raises(error, match=text):
        play(faulty(reward=reward))


def test_no_reward_is_recorded_if_there_is_none():
    assert play(Faulty).rewards == {}
    assert play(faulty(reward=lambda self: None)).rewards == {}

    async def reward(self):
        return True

    assert play(faulty(get_reward=reward)).rewards == {"Faulty": 1.0}


@pytest.mark.parametrize("waits", ["thread", "loop"])
def test_an_object_whose_call_hangs_is_not_used_again(waits):
    gate = threading.Event()

    def hang(self) -> str:
        """Hang."""
        gate.wait(10)
        return "late"

    async def wait(self) -> str:
        """Hang."""
        await asyncio.sleep(60)
        return "late"

    kind = faulty(hang=hang if waits == "thread" else wait)
    played = play(kind, call("act"), call("hang"), call("act"), call("hang"), timeout_s=0.05)
    gate.set()
    assert [each.outcome.value for each in played.results] == ["ok", "timeout", "tool_error", "tool_error"]
    assert played.results[2].text == "Error: the environment cannot be used any more, because hang did not end"
    assert played.session.data.environment.calls == ["act"]
    gate.clear()
    with pytest.raises(InfraError, match="reward of environment 'Faulty' is not called: the environment cannot be"):
        play(faulty(hang=wait, reward=lambda self: 1.0), call("hang"), timeout_s=0.02)


class Ends:
    """Ends after two steps."""

    def reset(self):
        self.steps = 0

    @property
    def done(self):
        return self.steps >= 2

    def step(self) -> str:
        """Step."""
        self.steps += 1
        if self.steps == 2:
            raise ToolError("fell into a hole")
        return "on"

    def reward(self) -> float:
        return float(self.steps)


def test_no_method_runs_after_the_end():
    played = play(Ends, call("step"), call("step"), call("step"))
    assert [each.text for each in played.results] == ["on", "Error: fell into a hole", "Error: the episode has ended"]
    assert (played.session.ended, played.rewards) == (True, {"Ends": 2.0})
    assert not play(Ends, call("step")).session.ended


def test_a_method_may_be_called_done():
    def done(self) -> str:
        """Say that you are done."""
        return "well"

    played = play(faulty(done=done), call("act"), call("done"))
    assert [each.text for each in played.results] == ["acted", "well"]
    assert not played.session.ended


class Meeting:
    """Records how many calls are inside; with `concurrent_calls`, each waits for all four."""

    concurrent_calls = False

    def __init__(self):
        self.inside, self.most = 0, 0

    def reset(self):
        self.complete = asyncio.Event()

    async def act(self, n: int) -> str:
        """Act."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside == 4:
            self.complete.set()
        for _ in range(20):  # others could begin meanwhile
            await asyncio.sleep(0)
        if self.concurrent_calls:
            await self.complete.wait()
        self.inside -= 1
        return f"{n}"


@pytest.mark.parametrize(("concurrent", "most"), [(False, 1), (True, 4)])
def test_calls_of_one_rollout_run_one_at_a_time_unless_the_class_allows_more(concurrent, most):
    kind = type("Meeting", (Meeting,), {"concurrent_calls": concurrent})
    played = play(kind, *(call("act", n=n) for n in range(4)), parallel=True)
    assert [each.text for each in played.results] == ["0", "1", "2", "3"]
    assert played.session.data.environment.most == most


def test_an_object_that_is_created_too_late_is_closed():
    gate, made, closed = threading.Event(), [], threading.Event()

    class Late:
        def __init__(self):
            made.append(self)
            if len(made) > 1:
                gate.wait(10)

        def act(self) -> str:
            """Act."""
            return ""

        async def close(self):
            if self is made[-1] and len(made) > 1:
                closed.set()

    async def main():
        box = Toolbox([environment(Late)])

        async def rollout():
            async with box.session(task()) as session:
                await session.start()

        running = asyncio.create_task(rollout())
        await until(lambda: len(made) == 2)
        running.cancel()
        await asyncio.wait([running])
        gate.set()
        await until(closed.is_set)
        await box.close()
        return running.cancelled()

    assert asyncio.run(main())


def test_a_random_environment_repeats_with_the_seed_of_the_rollout():
    class Dice:
        def reset(self, seed):
            self.random = random.Random(seed)

        def roll(self) -> int:
            """Roll."""
            return self.random.randint(1, 10**9)

    rolled = [[each.text for each in play(Dice, *[call("roll")] * 3, seed=seed).results] for seed in (1, 1, 2)]
    assert rolled[0] == rolled[1] != rolled[2]


class Spy(Recorder):
    async def execute(self, instance_id, parameters, agent_data, seed, **kwargs):
        return ToolResponse(f"{agent_data.environment.bought} {seed == agent_data.seed}"), 0.0, {}


def test_other_tools_of_the_rollout_see_the_object_and_the_seed():
    async def main():
        box = Toolbox([environment(Shop), Spy()])
        async with box.session(task()) as session:
            session.data.seed = 5
            await session.start()
            await session.call(call("buy", item="x"))
            text = (await session.call(call("recorder"))).text
        await box.close()
        return text

    assert asyncio.run(main()) == "['x'] True"


def test_a_row_may_set_the_timeout():
    async def act(self) -> str:
        """Act."""
        await asyncio.sleep(60)
        return ""

    played = play(faulty(act=act), call("act"), row=task(extra_info={"tool_config": {"timeout": 0.01}}))
    assert played.results[0].outcome is Outcome.TIMEOUT
