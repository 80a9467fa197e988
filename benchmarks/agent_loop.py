"""Measure the framework's overhead per turn with an instant engine; optionally also the loops of verl and TRL.

    OMP_NUM_THREADS=1 python benchmarks/agent_loop.py [--peers] [--rollouts 1,100] [--turns 3,30] [--all] [--profile]

In each turn except the last, a scripted model calls a tool. The call is parsed and run (an async function, outside the
training event loop). Its result is rendered and appended. In the last turn, the model answers. Rollouts run
concurrently, at most ten per prompt. For the row "agentrl, in place", the tool is called directly. The difference from
the row "agentrl" is the cost of the toolbox: checking the call, and switching to the tool thread and back.

`--peers` also measures verl and TRL, alternating with agentrl, each in its own process and environment. All three get
the same conversation, tokenizer, tool and number of turns. `peers/verl_loop.py` and `peers/trl_loop.py` list the parts
that are not measured. agentrl's figures include the scripted engine, but neither a model nor the reward. Figures are
medians of five runs; runs with more than 10,000 turns are not repeated. 1,000 rollouts of 100 turns take minutes and
run only with `--all`.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from peers.conversation import ANSWER, CALL, GROUP_SIZE, RESULT, Stopwatch, question, search
from peers.environment import peer_python

from agentrl.chat.base import ParsedCall
from agentrl.chat.format import ChatFormat
from agentrl.config.run import RunConfig
from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.rollouts.collector import collect
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.result import ToolResult
from agentrl.tools.toolbox import Toolbox, ToolSession
from agentrl.types.rollout import Outcome
from agentrl.types.task import Task

sys.path.append(str(Path(__file__).parents[1] / "tests/chat"))
from chat_families import family_tokenizer  # a small tokenizer with a chat template

PEERS = Path(__file__).parent / "peers"
NUM_REPEATS, MAX_REPEATED_TURNS = 5, 10_000
LONGEST = (1000, 100)

Measure = Callable[[int, int], tuple[float, float]]
"""(rollouts, turns) -> (wall-clock, CPU) microseconds per turn."""


class Script:
    """Scripted model: calls the tool in every turn of a conversation except the last."""

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
    """Calls the tool directly, without checks and without the tool thread, so that only the loop is measured."""

    def session(self, task: Task) -> ToolSession:
        session = super().session(task)
        session.call = self.call
        return session

    async def call(self, call: ParsedCall) -> ToolResult:
        return ToolResult(await search(**json.loads(call.arguments)), Outcome.OK)


def ours(chat: ChatFormat, toolbox_class: type[Toolbox]) -> Measure:
    def measure(num_rollouts: int, num_turns: int) -> tuple[float, float]:
        return asyncio.run(rollouts(chat, toolbox_class, num_rollouts, num_turns))

    measure(2, 3)  # warm-up: template shapes, imports
    return measure


async def rollouts(
    chat: ChatFormat, toolbox_class: type[Toolbox], num_rollouts: int, num_turns: int
) -> tuple[float, float]:
    config = config_of(num_turns)
    starts = range(0, num_rollouts, GROUP_SIZE)
    tasks = [Task(question(start), uid=str(start)) for start in starts]
    toolbox = toolbox_class([search], config.rollout.multi_turn)
    runner = RolloutRunner(ScriptedEngine(Script(chat, num_turns)), chat, toolbox, None, config)
    n = min(num_rollouts, GROUP_SIZE)
    options = {"sampling": SamplingParams(), "seed": 0, "slots": asyncio.Semaphore(num_rollouts)}
    await collect(runner, [Task(question(-GROUP_SIZE), uid="first")], n=2, **options)  # starts the tool thread
    with Stopwatch(len(tasks) * n * num_turns) as spent:
        groups = await collect(runner, tasks, n=n, **options)
    calls = [call for group in groups for rollout in group.rollouts for call in rollout.tool_calls]
    assert len(calls) == len(tasks) * n * (num_turns - 1)
    assert all(call.outcome is Outcome.OK and call.result == RESULT for call in calls)
    await toolbox.close()
    return spent.wall_us, spent.cpu_us


async def engine_alone(chat: ChatFormat) -> tuple[float, float]:
    """Return the (wall-clock, CPU) microseconds per turn of the scripted engine alone."""
    engine = ScriptedEngine(Script(chat, 100))
    sampling = SamplingParams(stop_token_ids=chat.stop_token_ids, max_new_tokens=1000)
    with Stopwatch(10_000) as spent:
        for request in range(10_000):
            await engine.generate(GenerateRequest([1], sampling, str(request % 100)))
    return spent.wall_us, spent.cpu_us


def peer(name: str, tokenizer: Path, stack: ExitStack) -> Measure:
    """Return a function that measures a peer's loop in its own process. The process ends when `stack` is closed."""
    command = [peer_python(name), PEERS / f"{name}_loop.py", tokenizer]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    stack.callback(process.wait)
    stack.callback(process.stdin.close)

    def answer() -> dict[str, str | float]:
        while line := process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{name} ended: see what it wrote above")

    print(name, answer())

    def measure(num_rollouts: int, num_turns: int) -> tuple[float, float]:
        print(num_rollouts, num_turns, file=process.stdin)
        spent = answer()
        return spent["wall_us"], spent["cpu_us"]

    return measure


def compare(sides: dict[str, Measure], sizes: list[tuple[int, int]]) -> None:
    print(f"{'rollouts':>9}{'turns':>7}  {'microseconds a turn':24}{'wall':>9}{'CPU':>9}{'least CPU':>11}")
    for num_rollouts, num_turns in sizes:
        repeats = NUM_REPEATS if num_rollouts * num_turns <= MAX_REPEATED_TURNS else 1
        runs = [[measure(num_rollouts, num_turns) for measure in sides.values()] for _ in range(repeats)]
        for name, run in zip(sides, zip(*runs, strict=True), strict=True):
            wall, cpu = (statistics.median(column) for column in zip(*run, strict=True))
            least = min(cpu_us for _, cpu_us in run)
            print(f"{num_rollouts:9}{num_turns:7}  {name:24}{wall:9.1f}{cpu:9.1f}{least:11.1f}", flush=True)


def sizes_of(arguments: argparse.Namespace) -> list[tuple[int, int]]:
    counts, turns = ([int(part) for part in text.split(",")] for text in (arguments.rollouts, arguments.turns))
    return [(a, b) for a in counts for b in turns if arguments.all or (a, b) != LONGEST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", default="1,100,1000")
    parser.add_argument("--turns", default="3,10,30,100")
    parser.add_argument("--peers", action="store_true", help="verl and TRL too")
    parser.add_argument("--all", action="store_true", help="1,000 rollouts of 100 turns too")
    parser.add_argument("--profile", action="store_true", help="print a profile of agentrl's loop, not the table")
    arguments = parser.parse_args()
    chat = ChatFormat(family_tokenizer("chatml"))
    sides = {"agentrl": ours(chat, Toolbox), "agentrl, in place": ours(chat, InlineToolbox)}
    if arguments.profile:
        with cProfile.Profile() as profile:
            sides["agentrl"](100, 30)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    print("agentrl", {name: version(name) for name in ("agentrl-train", "transformers", "torch")})
    with ExitStack() as stack:
        if arguments.peers:
            tokenizer = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            chat.tokenizer.save_pretrained(tokenizer)
            sides |= {name: peer(name, tokenizer, stack) for name in ("verl", "trl")}
        compare(sides, sizes_of(arguments))
    _, cpu_us = min(asyncio.run(engine_alone(chat)) for _ in range(3))
    print(f"of which the scripted engine {cpu_us:.1f}")


if __name__ == "__main__":
    main()
