"""Groups in flight during training: starts, cut-offs, errors and cancellation."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest

from agentrl.data.order import Draw, TaskOrder
from agentrl.errors import ConfigError
from agentrl.rollouts.collector import AllFailedError, side_by_side
from agentrl.telemetry.timing import Timer
from agentrl.trainer.sources.admission import Admissions
from agentrl.trainer.sources.exclusions import ignore
from agentrl.trainer.sources.live import task_of
from agentrl.trainer.sources.staleness_metrics import IdleTime
from agentrl.trainer.sources.streaming import StreamingSource
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

TASKS = [Task([{"role": "user", "content": str(row)}], index=row) for row in range(6)]


def sampled_by(*versions: int) -> Rollout:
    spans = [VersionSpan(version, 2) for version in versions]
    num_tokens = 2 * len(versions)
    model = Segment(Author.MODEL, [5] * num_tokens, logprobs=[-1.0] * num_tokens, policy_versions=spans)
    return Rollout([Trajectory([Segment(Author.PROMPT, [1]), model])], Stop.FINISHED, {"score": 1.0})


def endless(*indices):
    """Rollouts of these rows never end; others end soon."""
    return lambda task, turn: task.index in indices or turn < 1


class World:
    """Rollouts that last while `lasts(task, turn)` is true, checked once per event-loop turn."""

    def __init__(self, lasts=lambda task, turn: turn < 1, n=2):
        self.version, self.under_way, self.most = 0, 0, 0
        self.begun, self.cleaned_up, self.priorities = [], [], []
        self._lasts, self._n = lasts, n

    def attempts(self, task, priority=0):
        self.priorities.append((task.index, priority))
        return [partial(self._attempt, task) for _ in range(self._n)]

    async def _attempt(self, task):
        self.begun.append(task)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        first, turn = self.version, 0
        try:
            while self._lasts(task, turn):
                await asyncio.sleep(0)
                turn += 1
        finally:
            self.under_way -= 1
            self.cleaned_up.append(task)
        return sampled_by(*sorted({first, self.version}))

    async def publish(self, version):
        self.version = version


def source_of(
    world,
    *,
    size=2,
    staleness=1,
    over_sampling=0.0,
    num_steps=None,
    max_concurrent=100,
    slots=None,
    drop=ignore,
    num_rollouts=None,
):
    admissions = Admissions(TaskOrder(6, 0, False).at, size, staleness, over_sampling, num_steps)
    slots = slots or asyncio.Semaphore(max_concurrent)
    tasks = partial(task_of, tasks=TASKS, seed=7)
    return StreamingSource(
        admissions,
        tasks,
        world.attempts,
        slots,
        max_concurrent,
        staleness,
        Timer(),
        drop=drop,
        num_rollouts=num_rollouts,
    )


def run(source, world, num_steps, between=lambda step: asyncio.sleep(0)):
    """The groups of each step, as the training loop takes them."""

    async def steps():
        taken = []
        async with source.feeding():
            for step in range(num_steps):
                taken.append(await source.take(policy_version=step))
                await between(step)
                await world.publish(step + 1)
                source.published(step + 1)
        return taken

    return asyncio.run(asyncio.wait_for(steps(), 20))


async def other_tasks(step):
    """Let other tasks run."""
    for _ in range(50):
        await asyncio.sleep(0)


def rows(steps):
    return [[group.task.index for group in groups] for groups in steps]


def test_tasks_are_drawn_in_order_and_groups_continue_during_training():
    world = World()
    source = source_of(world)

    async def training(step):
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(world.begun) == 2 * 2 * (step + 2)  # includes rollouts of the next step

    assert rows(run(source, world, 4, training)) == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert source.metrics()["staleness/mean"] == 1.0
    assert source.metrics()["staleness/1"] == 1.0


def test_rollout_may_continue_with_new_weights():
    world = World(lambda task, turn: world.version < 1 if task.index == 2 else turn < 1)
    source = source_of(world, staleness=2)
    steps = run(source, world, 3)
    assert rows(steps) == [[0, 1], [3, 4], [2, 5]]
    assert list(steps[2][0].rollouts[0].policy_versions) == [0, 1]
    assert source.metrics()["staleness/partial"] == 0.5
    assert source.metrics()["staleness/tokens_lag_1"] == 1 / 3


def test_stale_groups_are_cut_off_cleaned_up_and_requeued():
    first, second = (task_of(Draw(0, 1, draw), TASKS, 7).uid for draw in (0, 1))
    world = World(lambda task, turn: task.uid == first or turn < 1)
    source = source_of(world, staleness=0, over_sampling=0.5)

    async def look(step):
        for _ in range(20):
            await asyncio.sleep(0)
        assert [task.uid for task in world.cleaned_up].count(first) == 2  # cut off at once, both siblings

    taken = run(source, world, 3, look)
    assert rows(taken)[:2] == [[0, 2], [1, 3]]
    assert taken[1][0].uid == second


def test_requeued_groups_are_counted():
    world = World(lambda task, turn: world.version < 1 if task.index == 1 else turn < 1)
    source = source_of(world, staleness=0, over_sampling=0.5)
    found = []

    async def look(step):
        found.append(source.metrics())

    run(source, world, 2, look)
    assert [each["staleness/requeued"] for each in found] == [1.0, 1.0]
    assert all(each["staleness/max"] == 0.0 for each in found)


@pytest.mark.parametrize(("staleness", "reason"), [(0, "over_sampled"), (1, "stale")])
def test_requeued_groups_are_recorded_with_their_finished_rollouts(staleness, reason):
    dropped, first = [], task_of(Draw(0, 1, 0), TASKS, 7).uid
    begun = []

    def lasts(task, turn):
        if task.uid != first:
            return turn < 1
        begun.append(task) if turn == 0 else None
        return turn > 0 or len(begun) % 2 == 0  # the second of its two rollouts never ends

    world = World(lasts)
    over = 0.0 if staleness else 0.5
    source = source_of(
        world,
        staleness=staleness,
        over_sampling=over,
        num_steps=4,
        drop=lambda group, reasons: dropped.append((group, reasons)),
    )
    taken = run(source, world, 3)
    found = [(group, reasons) for group, reasons in dropped if group.uid == first]
    ((group, reasons),) = found
    assert reasons == [reason] * 2
    assert [each.stop for each in group.rollouts] == [Stop.FINISHED, Stop.ABORTED]
    assert {each.uid for each, _ in dropped}.isdisjoint(each.uid for step in taken for each in step)


def test_the_greedy_rollout_of_remax_is_not_recorded_with_a_requeued_group():
    dropped, first = [], task_of(Draw(0, 1, 0), TASKS, 7).uid
    world = World(lambda task, turn: task.uid == first or turn < 1, n=3)
    source = source_of(
        world,
        staleness=0,
        over_sampling=0.5,
        num_rollouts=2,
        drop=lambda group, reasons: dropped.append((group.uid, len(group.rollouts), len(reasons))),
    )
    run(source, world, 1)
    assert dropped == [(first, 2, 2)]


def test_groups_in_flight_are_saved_as_tasks_and_come_first():
    world = World(endless(1))
    source = source_of(world, staleness=3, num_steps=2)
    (first,) = run(source, world, 1)
    assert rows([first]) == [[0, 2]]
    assert (source.position, source.pending) == (4, [Draw(0, 1), Draw(0, 3)])
    again = source_of(World(), staleness=3, num_steps=2)
    again.position, again.pending = source.position, source.pending
    assert rows(run(again, World(), 1)) == [[1, 3]]


@pytest.mark.parametrize("error", [ConfigError.keyless("reward.name: wrong"), ZeroDivisionError("ours")])
def test_a_rollout_error_ends_the_run_at_the_next_take(error):
    world = World(endless(4))

    def attempts(task, priority):
        async def fails():
            raise error

        return [fails] if task.index == 3 else world.attempts(task)

    source = source_of(world, staleness=2)
    source._attempts = attempts
    reached = []

    async def training(step):
        for _ in range(30):
            await asyncio.sleep(0)
        reached.append(step)

    with pytest.raises(type(error), match=str(error)):
        run(source, world, 3, training)
    assert reached == [0]
    assert world.under_way == 0


def test_a_rollout_error_is_reported_even_if_no_step_follows():
    async def fails():
        raise ConfigError.keyless("x: wrong")

    world = World()
    source = source_of(world, staleness=2)
    source._attempts = lambda task, priority: [fails] if task.index == 3 else world.attempts(task)
    with pytest.raises(ConfigError, match="x: wrong"):
        run(source, world, 1, other_tasks)


def test_a_cancelled_run_ends_all_rollouts_and_cleans_up():
    world = World(endless(*range(6)))
    source = source_of(world)

    async def cancelled():
        async def steps():
            async with source.feeding():
                await source.take(policy_version=0)

        before = asyncio.all_tasks()
        task = asyncio.create_task(steps())
        for _ in range(50):
            await asyncio.sleep(0)
        assert world.under_way == 8
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return asyncio.all_tasks() - before

    assert asyncio.run(asyncio.wait_for(cancelled(), 20)) == set()
    assert (world.under_way, len(world.cleaned_up)) == (0, 8)


def test_step_in_which_all_rollouts_fail_ends_the_run():
    async def fails():
        return Rollout([], Stop.ERROR, error="KeyError: 0")

    source = source_of(World())
    source._attempts = lambda task, priority: [fails, fails]
    with pytest.raises(AllFailedError, match="all 4 rollouts failed; the first: KeyError: 0"):
        run(source, World(), 1)


@pytest.mark.parametrize("max_concurrent", [1, 3, 5])
def test_concurrency_limit_includes_validation(max_concurrent):
    world = World(lambda task, turn: turn < 3)
    slots = asyncio.Semaphore(max_concurrent)
    source = source_of(world, staleness=2, max_concurrent=max_concurrent, slots=slots)

    async def validate(step):
        await side_by_side([each for task in TASKS for each in world.attempts(task)], slots)

    assert rows(run(source, world, 3, validate)) == [[0, 1], [2, 3], [4, 5]]
    assert world.most == max_concurrent


def test_group_waits_for_a_free_slot():
    most = 0

    def lasts(task, turn):
        nonlocal most
        most = max(most, len(source._admissions.under_way))
        return turn < 2

    world = World(lasts)
    source = source_of(world, staleness=4, max_concurrent=4)
    run(source, world, 4)
    assert most == 2


def test_time_before_the_first_step_is_not_idle_time():
    source, now = source_of(World()), [0.0]
    source._idle = IdleTime(clock=lambda: now[0])
    now[0] = 100.0  # after validation, before training
    run(source, World(), 1)
    assert source.metrics()["staleness/engine_idle_s"] == 0.0


@pytest.mark.parametrize("num_turns", range(2, 6))
def test_rollout_ending_during_cancellation_frees_its_slot_once(num_turns):
    world = World(lambda task, turn: turn < (num_turns if task.index == 1 else 1), n=1)
    source = source_of(world, staleness=0, over_sampling=0.5)
    counted = []

    async def look(step):
        for _ in range(10):
            await asyncio.sleep(0)
        counted.append(source._unfinished.total())

    run(source, world, 3, look)
    assert counted == [0, 0, 0]


def test_finished_rollout_frees_a_slot_for_the_next_group():
    world = World(endless(1))
    source = source_of(world, size=1, staleness=1, max_concurrent=2)
    quick, slow = World(), World(lambda task, turn: not world.begun)
    source._attempts = lambda task, priority: (
        [*quick.attempts(task)[:1], *slow.attempts(task)[:1]] if task.index == 0 else world.attempts(task)
    )
    assert rows(run(source, world, 1)) == [[0]]


def test_admission_order_is_kept_after_a_restart():
    world = World(lambda task, turn: task.index == 1 and turn < 40)
    run(source_of(world, staleness=1), world, 6)
    assert [priority for _, priority in dict.fromkeys(world.priorities)] == [
        -i for i in range(len(set(world.priorities)))
    ]
    assert Counter(world.priorities)[1, -1] == 2


def test_groups_begin_as_soon_as_weights_are_published():
    world = World()
    source = source_of(world)

    async def num_begun():
        for _ in range(50):
            await asyncio.sleep(0)
        return len({task.uid for task in world.begun})

    async def steps():
        async with source.feeding():
            await source.take(policy_version=0)
            assert await num_begun() == 4
            await world.publish(1)
            source.published(1)
            assert await num_begun() == 6

    asyncio.run(asyncio.wait_for(steps(), 20))


def test_waiting_of_engine_and_trainer_is_measured():
    now = [0.0]

    def lasts(task, turn):
        now[0] += 1
        return turn < 5

    world, found = World(lasts), []
    source = source_of(world, staleness=0)
    source._idle, source._timer = IdleTime(lambda: now[0]), Timer(lambda: now[0])
    num_busy = 2 * 2 * 6  # two groups of two rollouts, each six times

    async def idle(step):
        now[0] += 3 * num_busy
        found.append(source.metrics())

    run(source, world, 2, idle)
    assert found[1]["staleness/engine_idle_s"] == 3 * num_busy  # at staleness 0 no group may start meanwhile
    assert found[1]["staleness/engine_idle"] == 0.75
    assert found[1]["staleness/in_flight"] == 0.0
    assert source._timer.take()["timing_s/wait_rollouts"] > 0
