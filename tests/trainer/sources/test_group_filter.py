"""Dynamic sampling: which groups a step trains on, their replacements, and steps that find no group."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.data.order import Draw, TaskOrder
from agentrl.errors import ConfigError
from agentrl.rollouts.collector import AllFailedError
from agentrl.telemetry.timing import Timer
from agentrl.trainer.sources.admission import Admissions
from agentrl.trainer.sources.dynamic_sampling import GroupFilter, NothingToLearnError
from agentrl.trainer.sources.live import LiveSource, task_of
from agentrl.trainer.sources.streaming import StreamingSource
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

ROWS = 7
TASKS = [Task([{"role": "user", "content": str(row)}], index=row) for row in range(ROWS)]


def rollout(stop=Stop.FINISHED, version=0, **rewards: float) -> Rollout:
    model = Segment(Author.MODEL, [5], [-1.0], [VersionSpan(version, 1)])
    return Rollout([Trajectory([Segment(Author.PROMPT, [1]), model])], stop, rewards)


def scored(*scores: float) -> Group:
    return Group(TASKS[0], [rollout(score=score) for score in scores])


def group_filter(metric="score", size=2, max_batches=0) -> GroupFilter:
    return GroupFilter(metric, size, max_batches, success_threshold=1.0)


FAILED = rollout(Stop.ERROR)


@pytest.mark.parametrize(
    ("group", "passes", "kind"),
    [
        (scored(0, 1, 0), True, None),
        (scored(1, 1, 1.0), False, "all_correct"),
        (scored(0, 0.5 - 0.5), False, "all_wrong"),
        (scored(0.3, 0.1 + 0.2), False, "all_wrong"),
        (Group(TASKS[0], [FAILED, rollout(score=1.0)]), False, "too_few"),
        (Group(TASKS[0], [FAILED, rollout(score=1.0), rollout(score=0.0)]), True, None),
        (Group(TASKS[0], [rollout(score=0.0)]), False, "too_few"),
    ],
)
def test_a_group_is_kept_if_two_valid_rollouts_differ(group, passes, kind):
    one = group_filter()
    assert one.passes(group) == passes
    assert one.passes(scored(0, 1))
    metrics = one.end_step(2)
    assert metrics["sampling/filtered"] == (kind is not None)
    kinds = {name: metrics[f"sampling/{name}"] for name in ("all_correct", "all_wrong", "equal", "too_few")}
    assert kinds == {name: 0.5 * (name == kind) for name in kinds}


def test_any_reward_may_be_the_filter_metric():
    one = group_filter("accuracy")
    equal = Group(TASKS[0], [rollout(score=score, accuracy=1.0) for score in (0.5, 1.0)])
    assert not one.passes(equal)
    assert one.passes(Group(TASKS[0], [rollout(score=0.5, accuracy=value) for value in (0.0, 1.0)]))
    metrics = one.end_step(1)
    assert (metrics["sampling/equal"], metrics["sampling/drawn"], metrics["sampling/rounds"]) == (0.5, 2.0, 1.0)
    assert metrics["sampling/reward_mean"] == (0.5 + 1.0 + 0.5 + 0.5) / 4  # mean over filtered groups, too


def test_verl_acc_is_the_score_if_a_function_returns_a_number():
    assert group_filter("acc").passes(scored(0, 1))
    named = Group(TASKS[0], [rollout(score=score, acc=1.0) for score in (0.0, 1.0)])
    assert not group_filter("acc").passes(named)


def test_unknown_reward_name_lists_available_names():
    with pytest.raises(
        ConfigError, match=r"filter_groups.metric': a rollout has no reward 'acuracy': did you mean 'acc"
    ):
        group_filter("acuracy").passes(Group(TASKS[0], [rollout(score=1.0, accuracy=1.0)]))
    with pytest.raises(ConfigError, match="no reward 'score': there are none"):
        group_filter().passes(Group(TASKS[0], [rollout()]))


def test_each_step_resets_its_counts_and_a_short_one_is_reported_once(capsys):
    one = group_filter(max_batches=1)
    for _ in range(2):
        one.passes(scored(0, 0))
        one.passes(scored(1, 0))
        assert one.end_step(1)["sampling/drawn"] == 2
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "a step trains on 1 of 2 groups (printed only once): of 2 groups drawn for a step, 1 have different values"
        " of 'score' (0 all_correct, 1 all_wrong, 0 equal, 0 too_few)"
    ]


def test_a_long_search_is_reported_periodically(capsys):
    one = group_filter(size=3)
    for _ in range(61):
        one.passes(scored(1, 1))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "of 30 groups drawn for a step, 0 have different values of 'score' (30 all_correct, 0 all_wrong, 0 equal"
    )
    assert second.startswith("of 60 groups")


DRAWS = {
    task_of(draw, TASKS, 7).uid: draw
    for draw in (Draw(epoch, row, again) for epoch in range(40) for row in range(ROWS) for again in range(3))
}


class World:
    """Tasks with different sibling scores if `telling(draw)`, and equal ones otherwise."""

    def __init__(self, telling, n=2):
        self.draws = DRAWS
        self.drawn, self.version, self._telling, self._n = [], 0, telling, n

    async def collect(self, tasks):
        return [Group(task, [await each() for each in self.attempts(task)]) for task in tasks]

    def attempts(self, task, priority=0):
        draw = self.draws[task.uid]
        self.drawn.append(draw)
        tells = self._telling(draw)
        return [partial(self._attempt, float(number if tells else 0)) for number in range(self._n)]

    async def _attempt(self, score):
        version = self.version
        await asyncio.sleep(0)
        return rollout(version=version, score=score)

    async def publish(self, version):
        self.version = version

    def live(self, size=2, max_batches=0):
        order = TaskOrder(ROWS, 3, True)
        return LiveSource(
            TASKS, order, size, self.collect, seed=7, group_filter=group_filter(size=size, max_batches=max_batches)
        )

    def streaming(self, size=2, max_batches=0, staleness=1, over_sampling=0.0, num_steps=None):
        one = group_filter(size=size, max_batches=max_batches)
        at = TaskOrder(ROWS, 3, True).at
        admissions = Admissions(at, size, staleness, over_sampling, num_steps, one.max_drawn)
        tasks, slots = partial(task_of, tasks=TASKS, seed=7), asyncio.Semaphore(99)
        return StreamingSource(admissions, tasks, self.attempts, slots, 99, staleness, Timer(), group_filter=one)


def take(source, steps, first=0, publish=None):
    async def all_steps():
        taken = []
        async with source.feeding():
            for step in range(first, first + steps):
                taken.append([group.task.uid for group in await source.take(policy_version=step)])
                if publish:
                    await publish(step + 1)
                    source.published(step + 1)
        return taken

    return asyncio.run(asyncio.wait_for(all_steps(), 20))


def odd(draw):
    return (draw.row + draw.epoch) % 2 == 1


def test_filtered_groups_are_replaced_by_the_next_tasks_in_order():
    world = World(odd)
    source = world.live(size=3)
    steps = take(source, 4)
    order = TaskOrder(ROWS, 3, True)
    assert world.drawn == [order.at(place) for place in range(source.position)]
    assert [world.draws[uid] for step in steps for uid in step] == [draw for draw in world.drawn if odd(draw)]
    assert [len(step) for step in steps] == [3] * 4
    assert source.metrics()["sampling/drawn"] == source.metrics()["sampling/filtered"] + 3


@example(1, 2, {(0, 2)})  # one of the tasks that were left over
@given(st.integers(1, 4), st.integers(1, 5), st.sets(st.tuples(st.integers(0, 4), st.integers(0, ROWS - 1))))
def test_resumed_run_draws_the_same_groups(size, at, silent):
    """Holds for any stop, also with tasks left over from an earlier process."""

    def telling(draw):
        return (draw.epoch, draw.row) not in silent

    left = [Draw(0, 4, 1), Draw(0, 2), Draw(0, 6, 1)]
    world = World(telling)
    whole, first, second = world.live(size), *(World(telling).live(size) for _ in range(2))
    whole.position, whole.pending = first.position, first.pending = 5, left
    steps = take(whole, 6)
    assert steps[:at] == take(first, at)
    second.position, second.pending = first.position, first.pending
    assert steps[at:] == take(second, 6 - at, first=at)
    assert (whole.position, list(whole.pending)) == (second.position, list(second.pending))
    order = TaskOrder(ROWS, 3, True)
    drawn = [*left, *(order.at(place) for place in range(5, whole.position))]
    assert [*world.drawn, *whole.pending] == drawn  # each once, none skipped
    assert [world.draws[uid] for step in steps for uid in step] == [*filter(telling, world.drawn)]


def test_a_step_stops_at_its_draw_limit_and_uses_the_groups_found():
    world = World(lambda draw: draw in world.drawn[::5])
    source = world.live(size=3, max_batches=2)
    assert [len(step) for step in take(source, 1)] == [2]
    assert source.position == len(world.drawn) == 6


@pytest.mark.parametrize("kind", ["live", "streaming"])
def test_step_without_any_usable_group_ends_the_run(kind):
    source = getattr(World(lambda draw: False), kind)(size=2, max_batches=3)
    with pytest.raises(
        NothingToLearnError, match=r"0 have different values of 'score' \(0 all_.*max_num_gen_batches=3 is reached"
    ):
        take(source, 1)


@pytest.mark.parametrize("kind", ["live", "streaming"])
def test_failing_rollouts_do_not_cause_endless_draws(kind):
    world = World(odd)

    async def fails(score):
        return Rollout([], Stop.ERROR, error="KeyError: 0")

    world._attempt = fails
    with pytest.raises(AllFailedError, match="all 6 rollouts failed; the first: KeyError: 0"):
        take(getattr(world, kind)(size=3), 1)


def test_one_round_of_failures_does_not_end_the_run():
    world = World(lambda draw: len(world.drawn) != 2)
    real = world._attempt

    async def one(score):
        return FAILED if len(world.drawn) == 3 else await real(score)

    world._attempt = one
    assert [len(step) for step in take(world.live(size=2), 1)] == [2]
    assert len(world.drawn) == 4


def test_streaming_filtered_group_frees_its_slot_immediately():
    world = World(odd)
    source = world.streaming(size=2, staleness=1)
    steps = take(source, 5, publish=world.publish)
    taken = [world.draws[uid] for step in steps for uid in step]
    assert [len(step) for step in steps] == [2] * 5
    assert all(map(odd, taken))
    order = TaskOrder(ROWS, 3, True)
    drawn = [order.at(place) for place in range(source.position)]
    assert sorted([*taken, *filter(odd, source.pending)]) == sorted(filter(odd, drawn))
    assert source.metrics()["sampling/filtered"] > 0


def test_streaming_step_uses_the_groups_found():
    world = World(lambda draw: draw in world.drawn[::5])
    source = world.streaming(size=3, max_batches=2, staleness=0)
    steps = take(source, 2, publish=world.publish)
    assert [len(step) for step in steps] == [2, 1]


def test_streaming_missing_filter_metric_ends_the_run():
    source = World(odd).streaming()
    source._filter._metric = "speed"
    with pytest.raises(ConfigError, match="no reward 'speed'"):
        take(source, 1)


def test_filtered_groups_are_recorded_with_the_reason_of_each_rollout():
    dropped = []
    one = GroupFilter("score", 2, 0, 1.0, lambda group, reasons: dropped.append((group, reasons)))
    equal, few = scored(1, 1), Group(TASKS[0], [FAILED, rollout(score=1.0)])
    for group in (equal, few, scored(0, 1)):
        one.passes(group)
    assert dropped == [(equal, ["equal_rewards"] * 2), (few, ["failed", "too_few"])]
