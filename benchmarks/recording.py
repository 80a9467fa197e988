"""Measure the cost of recording a conversation's operations: time per turn, and size and time of the saved files.

    OMP_NUM_THREADS=1 python benchmarks/recording.py [--rollouts 100] [--turns 30] [--repeats 5]

The rollouts are those of `agent_loop.py`: a scripted model calls a tool in every turn but the last. Runs with and
without recording alternate. "A record" is one operation alone, without the turn around it. This figure is the most
exact one, because the time of a turn varies by more than the time of its recording. All times are CPU times.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from agent_loop import Script, config_of
from chat_families import family_tokenizer  # found by agent_loop
from peers.conversation import GROUP_SIZE, Stopwatch, question, search

from agentrl.agent_loops.conversation import Conversation
from agentrl.agent_loops.operations import RecordedOperation
from agentrl.chat.format import ChatFormat
from agentrl.engines.base import SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.rollouts.collector import collect
from agentrl.rollouts.runner import RolloutRunner
from agentrl.store import TrajectoryStore
from agentrl.tools.toolbox import Toolbox
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Group
from agentrl.types.task import Task

NUM_RECORDS = 100_000


@contextmanager
def without_recording() -> Iterator[None]:
    recording = Conversation._operation

    def nothing(self: Conversation, kind: OperationKind) -> AbstractContextManager[None]:
        return nullcontext()

    Conversation._operation = nothing  # type: ignore[method-assign, assignment]  # for this measurement only
    try:
        yield
    finally:
        Conversation._operation = recording  # type: ignore[method-assign]  # as above


async def rolled_out(chat: ChatFormat, num_rollouts: int, num_turns: int) -> tuple[list[Group], float]:
    """Return the groups, and the microseconds of CPU time per turn."""
    config = config_of(num_turns)
    tasks = [Task(question(start), uid=str(start)) for start in range(0, num_rollouts, GROUP_SIZE)]
    toolbox = Toolbox([search], config.rollout.multi_turn)
    runner = RolloutRunner(ScriptedEngine(Script(chat, num_turns)), chat, toolbox, None, config)
    options = {"sampling": SamplingParams(), "seed": 0, "slots": asyncio.Semaphore(num_rollouts)}
    await collect(runner, tasks[:1], n=1, **options)  # starts the tool thread
    with Stopwatch(len(tasks) * GROUP_SIZE * num_turns) as spent:
        groups = await collect(runner, tasks, n=GROUP_SIZE, **options)
    await toolbox.close()
    return groups, spent.cpu_us


def a_record(groups: list[Group]) -> float:
    """Return the microseconds to record one operation that appends a message."""

    class Chat:
        trajectory = groups[0].rollouts[0].trajectories[0]
        tool_calls, turn_rewards, stop = list[object](), list[object](), None

    operations: list = []
    messages, num_messages = Chat.trajectory.messages, len(Chat.trajectory.messages)
    start = time.process_time()
    for _ in range(NUM_RECORDS):
        with RecordedOperation(Chat, 0, OperationKind.SAY, operations, int):  # type: ignore[arg-type]  # reads only these
            messages.append(messages[0])
    recorded = time.process_time() - start
    del messages[num_messages:]
    start = time.process_time()
    for _ in range(NUM_RECORDS):
        messages.append(messages[0])
    alone = time.process_time() - start
    del messages[num_messages:]
    return (recorded - alone) / NUM_RECORDS * 1e6


def written(groups: list[Group], repeats: int) -> tuple[float, int]:
    """Return (median milliseconds to save a step, bytes of the file)."""
    with tempfile.TemporaryDirectory() as folder:
        store, seconds = TrajectoryStore(Path(folder)), []
        for _ in range(repeats):
            start = time.process_time()
            path = store.write(1, groups)
            seconds.append(time.process_time() - start)
        return statistics.median(seconds) * 1e3, path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rollouts", 100), ("turns", 30), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    chat = ChatFormat(family_tokenizer("chatml"))
    times: dict[bool, list[float]] = {True: [], False: []}
    groups, _ = asyncio.run(rolled_out(chat, GROUP_SIZE, 3))  # warm-up
    for _ in range(arguments.repeats):
        for recording in (True, False):
            with nullcontext() if recording else without_recording():
                found, us = asyncio.run(rolled_out(chat, arguments.rollouts, arguments.turns))
            times[recording].append(us)
            groups = found if recording else groups
    with_us, without_us = (statistics.median(times[recording]) for recording in (True, False))
    print(f"a turn: {with_us:.0f} us with recording, {without_us:.0f} us without (medians of {arguments.repeats})")
    print(f"a record: {a_record(groups):.2f} us; a turn with a tool call has two")
    bare = [replace(group, rollouts=[replace(each, operations=[]) for each in group.rollouts]) for group in groups]
    num_turns = sum(t.num_turns for group in groups for each in group.rollouts for t in each.trajectories)
    (ms, size), (bare_ms, bare_size) = written(groups, arguments.repeats), written(bare, arguments.repeats)
    per_turn = (size - bare_size) / num_turns
    print(f"a file of {num_turns} turns: {size / 1e3:.0f} kB with operations, {bare_size / 1e3:.0f} kB without", end="")
    print(f" ({per_turn:.2f} bytes per turn); written in {ms:.1f} ms and {bare_ms:.1f} ms")


if __name__ == "__main__":
    main()
