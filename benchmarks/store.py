"""Measure the store: writing a step, and reading some columns, all columns, or one rollout.

    python benchmarks/store.py [folder]

A step has 16 groups of 8 rollouts. Each rollout has 3 turns, 2 tool calls and about 90 tokens. Each file is synced to
disk, so the time depends on the folder's disk. By default a temporary folder is used.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.algos.credit import imitate, samples_of
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

NUM_STEPS, NUM_GROUPS, NUM_ROLLOUTS = 40, 16, 8
RANDOM = random.Random(0)


def prompt(author: Author, num_tokens: int) -> Segment:
    return Segment(author, [RANDOM.randrange(150_000) for _ in range(num_tokens)])


def sampled(num_tokens: int, version: int) -> Segment:
    ids = [RANDOM.randrange(150_000) for _ in range(num_tokens)]
    return Segment(Author.MODEL, ids, [-RANDOM.expovariate(1) for _ in ids], [VersionSpan(version, num_tokens)])


def call(turn: int) -> dict[str, object]:
    function = {"name": "calculator", "arguments": {"expression": f"{RANDOM.random()} + {turn}"}}
    return {"id": f"c{turn:08d}", "type": "function", "function": function}


def rollout(task: Task, version: int) -> Rollout:
    segments, messages, calls = [prompt(Author.PROMPT, 30)], list(task.messages), []
    for turn in range(2):
        segments += [sampled(15, version), prompt(Author.TOOL, 8)]
        result = str(RANDOM.random())
        messages += [
            {"role": "assistant", "content": "Let me see.", "tool_calls": [call(turn)]},
            {"role": "tool", "content": result, "tool_call_id": f"c{turn:08d}"},
        ]
        calls.append(
            ToolCall("calculator", '{"expression": "1 + 1"}', result, Outcome.OK, RANDOM.random(), 8, 0.0, turn)
        )
    segments.append(sampled(14, version))
    messages.append({"role": "assistant", "content": f"It is {RANDOM.random()}."})
    scores = {"score": float(RANDOM.random() < 0.5), "format": 1.0}
    seed, duration_s = RANDOM.getrandbits(64), RANDOM.random()
    return Rollout([Trajectory(segments, messages)], Stop.FINISHED, scores, [], calls, seed=seed, duration_s=duration_s)


def make_groups(step: int) -> list[Group]:
    tasks = [
        Task([{"role": "user", "content": f"What is {row} + {step}?"}], str(row + step), "sums", row, f"{step}-{row}")
        for row in range(NUM_GROUPS)
    ]
    return [Group(task, [rollout(task, step) for _ in range(NUM_ROLLOUTS)]) for task in tasks]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(folder: Path) -> None:
    store = TrajectoryStore(folder)
    steps = [make_groups(step) for step in range(NUM_STEPS)]
    samples = [imitate(groups, samples_of(groups)) for groups in steps]
    writing = [seconds(lambda step=step: store.write(step, steps[step], samples[step])) for step in range(NUM_STEPS)]
    size = store.write(0, steps[0], samples[0]).stat().st_size
    median, best = 1e3 * statistics.median(writing), 1e3 * min(writing)
    print(f"write {NUM_GROUPS} x {NUM_ROLLOUTS}: median {median:.1f} ms, best {best:.1f} ms, {size / 1e3:.0f} kB")
    columns = ["rewards", "ground_truth", "trajectories.messages"]
    for name, read in {
        "messages and rewards": lambda: list(store.scan(columns=columns)),
        "rewards": lambda: list(store.scan(columns=["rewards"])),
        "everything": lambda: list(store.scan()),
    }.items():
        best = min(seconds(read) for _ in range(5))
        print(f"read {name}: {NUM_STEPS * NUM_GROUPS * NUM_ROLLOUTS / best:,.0f} rollouts/s")
    one = [seconds(lambda step=step: store.rollout(step, f"{step}-7", 3)) for step in range(NUM_STEPS)]
    print(f"read one: {1e3 * statistics.median(one):.1f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        measure(Path(folder))
