"""Measure the speed of replay, in rollouts per second on one core.

    python benchmarks/replay_speed.py [run's folder]

Without a folder, the script creates 40 steps of 128 rollouts. Each rollout has 3 turns, 2 tool calls and about 110
tokens of the calculator task's tokenizer. The target for reading and building a reward's input is 20,000 rollouts per
second. Each figure is the best of 5 passes. The first two figures are without a reward, the last two include a reward.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from hashlib import sha256
from pathlib import Path

from agentrl.chat.format import ChatFormat
from agentrl.config.model import ModelConfig
from agentrl.models.loading import load_tokenizer
from agentrl.replay.rescore.scoring import COLUMNS, cached_text, score_all, view_of
from agentrl.replay.saved_run import SavedRun, open_saved
from agentrl.rewards.base import Reward
from agentrl.rewards.functions.function import FunctionReward
from agentrl.rewards.reward_view import solution_view
from agentrl.rollouts.gc_tuning import fewer_collections
from agentrl.run_folder.provenance import hashes
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

NUM_STEPS, NUM_GROUPS, NUM_ROLLOUTS, NUM_PASSES = 40, 16, 8, 5
WANTED = 20_000


class Nothing:
    """A reward that does nothing."""

    async def __call__(self, *given: object) -> Mapping[str, float]:
        return {"score": 1.0}


def one(solution_str: str) -> float:
    return 1.0


def rollout(chat: ChatFormat, task: Task, number: int) -> Rollout:
    """Return a rollout with two calls and an answer, in tokens."""
    trajectory = Trajectory([Segment(Author.PROMPT, chat.start(task.messages, []))], task.messages)
    turns = [
        f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{number}+{turn}"}}}}\n</tool_call>'
        for turn in range(2)
    ]
    calls = []
    for turn, text in enumerate([*turns, f"The answer is {number}"]):
        ids = [*chat.tokenizer.encode(text, add_special_tokens=False), *chat.stop_token_ids]
        trajectory.append(Segment(Author.MODEL, ids, [-0.5] * len(ids), [VersionSpan(0, len(ids))]))
        if turn < len(turns):
            answer = [{"role": "tool", "content": str(number + turn)}]
            trajectory.append(Segment(Author.TOOL, chat.extend(answer, [], turn_closed=True)))
            calls.append(ToolCall("calculator", "{}", str(number + turn), Outcome.OK, 0.01, 8, 0.0, turn))
    made = Rollout([trajectory], Stop.FINISHED, {"score": float(number % 2)}, tool_calls=calls)
    made.scored_text_sha256 = sha256(solution_view(made, chat.text)[0].encode()).hexdigest()
    return made


def make_run(folder: Path) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples/calculator"))
    from make_task import make_task

    with redirect_stdout(sys.stderr):
        make_task(folder / "task", seed=0)
    tokenizer = load_tokenizer(ModelConfig(path=str(folder / "task/model")))
    assert tokenizer is not None
    chat = ChatFormat(tokenizer)
    kept = {**hashes(tokenizer), "config": f'{{"model": {{"path": "{folder}/task/model"}}}}'}
    store = TrajectoryStore(folder / "run/trajectories/train", provenance=kept)
    for step in range(NUM_STEPS):
        rows = range(step * NUM_GROUPS, (step + 1) * NUM_GROUPS)
        tasks = [
            Task([{"role": "user", "content": f"What is {row}+{row}?"}], str(2 * row), "calculator", row, f"uid{row}")
            for row in rows
        ]
        store.write(
            step, [Group(task, [rollout(chat, task, task.index + n) for n in range(NUM_ROLLOUTS)]) for task in tasks]
        )
    return folder / "run"


def rollouts_a_second(num: int, work: Callable[[], object]) -> float:
    spent_s = []
    for _ in range(NUM_PASSES):
        start = time.process_time()
        with fewer_collections():
            work()
        spent_s.append(time.process_time() - start)
    return num / min(spent_s)


def measure(run: SavedRun) -> None:
    text = cached_text(ChatFormat(run.tokenizer()).text)
    num = sum(1 for _ in run.rollouts(COLUMNS))

    def read() -> None:
        for _ in run.rollouts(COLUMNS):
            pass

    def view() -> None:
        for stored in run.rollouts(COLUMNS):
            view_of(stored, text)

    def score(reward: Reward) -> list[bool]:
        scored = asyncio.run(score_all(run.rollouts(COLUMNS), {"reward": reward}, text, False))
        return [row.same_text is not False for row in scored]

    function = FunctionReward(one, {}, 60.0, "one")
    print(f"{num:,} rollouts of {run.description}; text as scored in training: {all(score(Nothing()))}")
    for label, work in (
        ("reading the columns that rescore reads", read),
        ("and building a reward's input", view),
        ("and checking it, with a reward that does nothing", lambda: score(Nothing())),
        ("and a function that returns 1.0, on a thread", lambda: score(function)),
    ):
        speed = rollouts_a_second(num, work)
        print(f"{label:<52}{speed:>10,.0f} rollouts/s{speed / WANTED:>8.2f} of {WANTED:,}")
    function.close()


def main() -> None:
    if sys.argv[1:]:
        measure(open_saved(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(open_saved(str(make_run(Path(folder)))))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
