"""What the framework itself costs a turn: 100 rollouts at once on one thread, with an engine that answers at once.

    python benchmarks/agent_loop.py

Each turn is a tool call by a scripted model, the call parsed, run (an async function on the tools' own loop thread),
and its answer rendered and appended; the last turn answers.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import sys
import time
from pathlib import Path

from agentrl.chat.base import ParsedCall
from agentrl.chat.format import ChatFormat
from agentrl.config.run import RunConfig
from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.rollouts.collector import collect
from agentrl.rollouts.runner import RolloutRunner
from agentrl.task import Task
from agentrl.tools.toolbox import Toolbox, ToolResult, ToolSession
from agentrl.trajectory import Outcome

sys.path.append(str(Path(__file__).parents[1] / "tests/chat"))
from chat_families import family_tokenizer  # a small tokenizer with a chat template

NUM_ROLLOUTS = 100
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "weather in Paris"}}\n</tool_call>'
ANSWER = "It rains."


async def search(query: str) -> str:
    """Search.

    Args:
        query: what for.
    """
    return f"Nothing is known about {query}."


class Script:
    """The reply to each request: a call in all turns of a conversation but its last."""

    def __init__(self, chat: ChatFormat, num_turns: int) -> None:
        self._call, self._answer = ([*chat.tokenizer.encode(text), *chat.stop_token_ids] for text in (CALL, ANSWER))
        self._num_turns = num_turns
        self._taken: dict[str, int] = {}

    def __call__(self, request: GenerateRequest) -> list[int]:
        self._taken[request.session] = taken = self._taken.get(request.session, 0) + 1
        return self._call if taken < self._num_turns else self._answer


def config_of(num_turns: int) -> RunConfig:
    rollout = {"agent": {"default_agent_loop": "tool_agent"}}
    data = {"max_response_length": 1000 * num_turns}
    return RunConfig.model_validate({"model": {"path": "none"}, "data": data, "rollout": rollout})


class InlineToolbox(Toolbox):
    """Answers calls at once, without the thread that tools run on: what is left is the loop itself."""

    def session(self, task: Task) -> ToolSession:
        session = super().session(task)
        session.call = self.call
        return session

    async def call(self, call: ParsedCall) -> ToolResult:
        return ToolResult(await search(**json.loads(call.arguments)), Outcome.OK)


async def measure(chat: ChatFormat, num_turns: int, toolbox_class: type[Toolbox]) -> tuple[float, float]:
    """(wall-clock, CPU) microseconds a turn."""
    config = config_of(num_turns)
    tasks = [Task([{"role": "user", "content": "Will it rain?"}], uid=str(number)) for number in range(NUM_ROLLOUTS)]
    toolbox = toolbox_class([search], config.rollout.multi_turn)
    engine = ScriptedEngine(Script(chat, num_turns))
    runner = RolloutRunner(engine, chat, toolbox, None, config)
    arguments = {"n": 1, "sampling": SamplingParams(), "seed": 0, "max_concurrent": NUM_ROLLOUTS}
    await collect(runner, tasks[:2], **arguments)  # what is learnt once: template shapes, imports
    with Stopwatch(NUM_ROLLOUTS * num_turns) as spent:
        groups = await collect(runner, tasks, **arguments)
    calls = [call for group in groups for call in group.rollouts[0].tool_calls]
    assert len(calls) == NUM_ROLLOUTS * (num_turns - 1)
    assert all(call.outcome is Outcome.OK for call in calls)
    await toolbox.close()
    return spent.microseconds


async def engine_alone(chat: ChatFormat) -> tuple[float, float]:
    """What the scripted engine itself takes of that."""
    engine = ScriptedEngine(Script(chat, 100))
    sampling = SamplingParams(stop_token_ids=chat.stop_token_ids, max_new_tokens=1000)
    with Stopwatch(10_000) as spent:
        for _ in range(100):
            for number in range(NUM_ROLLOUTS):
                await engine.generate(GenerateRequest([1], sampling, str(number)))
    return spent.microseconds


class Stopwatch:
    """Wall-clock and CPU time (of all threads) a turn."""

    def __init__(self, num_turns: int) -> None:
        self._num_turns = num_turns
        self.microseconds = (0.0, 0.0)

    def __enter__(self) -> Stopwatch:
        self._start = (time.perf_counter(), time.process_time())
        return self

    def __exit__(self, *_: object) -> None:
        end = (time.perf_counter(), time.process_time())
        self.microseconds = tuple(1e6 * (b - a) / self._num_turns for a, b in zip(self._start, end, strict=True))


def report(name: str, runs: list[tuple[float, float]]) -> None:
    wall_us, cpu_us = map(min, zip(*runs, strict=True))
    print(f"{name:40s} {wall_us:7.1f} {cpu_us:7.1f}")


def main() -> None:
    chat = ChatFormat(family_tokenizer("chatml"))
    print(f"{NUM_ROLLOUTS} rollouts at once; microseconds a turn     wall     CPU")
    for num_turns in (3, 30, 100):
        for toolbox_class in (Toolbox, InlineToolbox):
            runs = [asyncio.run(measure(chat, num_turns, toolbox_class)) for _ in range(3)]
            report(f"{num_turns} turns, {toolbox_class.__name__}", runs)
    report("of which the scripted engine", [asyncio.run(engine_alone(chat)) for _ in range(3)])


if __name__ == "__main__":
    if "--profile" in sys.argv:
        with cProfile.Profile() as profile:
            asyncio.run(measure(ChatFormat(family_tokenizer("chatml")), 100, InlineToolbox))
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    else:
        main()
