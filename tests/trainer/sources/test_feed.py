"""A run's feed: the configured order, tasks added by rollouts, and resuming from a checkpoint."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentrl.config import RunConfig
from agentrl.data.online import add_task
from agentrl.data.prompt_length import Measure, fit_prompt
from agentrl.data.tasks import load_tasks
from agentrl.errors import ConfigError
from agentrl.trainer.sources.live import LiveSource
from agentrl.trainer.sources.task_queue import FILE, open_feed
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.trajectory import Author, Segment, Trajectory

ANSWER = Trajectory([Segment(Author.PROMPT, [1]), Segment(Author.DEMONSTRATION, [2])])


def open_run(tmp_path, **data):
    """The feed of twelve rows, and a source that uses it. Failed rollouts add a task; row r passes r of 11 times."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"row {row}", "level": -row}) + "\n" for row in range(12)))
    config = RunConfig(model={"path": "m"}, data={"train_files": [str(path)], "max_prompt_length": 20, **data})
    measure = Measure(lambda task: sum(len(message["content"]) for message in task.messages), list)
    tasks = load_tasks(config.data.train_files, config.data)
    feed = open_feed(config, tasks, lambda task: fit_prompt(task, measure, config.data))

    def attempts(task, priority):
        async def attempt(number):
            passed = float(number < task.index)
            if not passed:
                add_task({"prompt": f"{task.index}.{number}"})
                add_task({"prompt": "x" * 21})
            return Rollout([ANSWER], Stop.FINISHED, {"score": passed})

        return [lambda number=number: attempt(number) for number in range(11)]

    async def roll_out(tasks):
        return [Group(task, [await each() for each in feed.adding(attempts)(task, 0)]) for task in tasks]

    source = LiveSource(feed.tasks, feed.order, 4, feed.observed(roll_out), seed=1)
    feed.keep_while_in(lambda: source.pending)
    return feed, source


async def steps(source, count):
    return [[(group.uid, group.task.messages[0]["content"]) for group in await source.take(0)] for _ in range(count)]


def taken(tmp_path, count, **data):
    feed, source = open_run(tmp_path, **data)
    return feed, asyncio.run(steps(source, count))


def prompts(groups):
    return [prompt for step in groups for _, prompt in step]


def test_feed_without_curriculum_uses_file_order_and_no_state(tmp_path):
    feed, groups = taken(tmp_path, 3, shuffle=False)
    assert prompts(groups) == [f"row {row}" for row in range(12)]
    asyncio.run(feed.save(tmp_path, None))
    assert not (tmp_path / FILE).exists()
    assert feed.metrics() == {}


def test_column_sorts_the_rows(tmp_path):
    _, groups = taken(tmp_path, 3, curriculum={"by": "level"})
    assert prompts(groups) == [f"row {row}" for row in reversed(range(12))]


def test_always_and_never_solved_tasks_come_less_often(tmp_path):
    feed, groups = taken(tmp_path, 60, curriculum={"by": "pass_rate", "floor": 0.05})
    drawn = prompts(groups)
    assert drawn.count("row 5") > 3 * drawn.count("row 0") > 0
    assert drawn.count("row 6") > 3 * drawn.count("row 11") > 0
    assert feed.metrics()["curriculum/measured_rows"] == 12


def test_tasks_added_by_rollouts_are_drawn_later_and_too_long_ones_dropped(tmp_path):
    feed, groups = taken(tmp_path, 6, shuffle=False, online={"max_tasks": 5, "share": 0.5})
    assert prompts(groups)[:4] == ["row 0", "row 1", "row 2", "row 3"]
    added = [prompt for prompt in prompts(groups) if not prompt.startswith("row")]
    assert len(added) == 10
    assert len(set(added)) == len(added)
    assert feed.metrics()["online/bad"] > 0


@pytest.mark.parametrize("by", [None, "pass_rate", "level"])
def test_a_resumed_run_equals_an_uninterrupted_run(tmp_path, by):
    data = {"curriculum": {"by": by}, "online": {"max_tasks": 5, "share": 0.25}}
    (feed, source), (again, later) = open_run(tmp_path, **data), open_run(tmp_path, **data)

    async def whole():
        before = await steps(source, 4)
        await feed.save(tmp_path, None)
        position = source.position
        after = await steps(source, 8)
        await again.load(tmp_path)
        later.position = position
        return before, after, await steps(later, 8)

    before, after, repeated = asyncio.run(whole())
    assert repeated == after
    assert len({uid for step in before + after for uid, _ in step}) == 48


def test_an_old_checkpoint_can_be_resumed_and_a_truncated_one_is_refused(tmp_path):
    feed, source = open_run(tmp_path, shuffle=False, curriculum={"by": "pass_rate"})
    asyncio.run(feed.load(tmp_path))
    source.position = 5
    assert prompts(asyncio.run(steps(source, 1))) == ["row 5", "row 6", "row 7", "row 8"]
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ConfigError, match=r"cannot resume from '.*': data_state.json: "):
        asyncio.run(feed.load(tmp_path))
