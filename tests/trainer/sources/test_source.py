import asyncio

from agentrl.data.order import Draw, TaskOrder
from agentrl.trainer.sources.live import LiveSource, SavedSource, StoredSource, task_of
from agentrl.types.rollout import Group
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory

TASKS = [Task(messages=[{"role": "user", "content": str(row)}], index=row) for row in range(5)]


async def no_rollouts(tasks):
    return [Group(task, []) for task in tasks]


def live(position: int = 0) -> LiveSource:
    source = LiveSource(TASKS, TaskOrder(5, seed=3, shuffle=True), 2, no_rollouts, seed=7)
    source.position = position
    return source


def take(source, times: int) -> list[Task]:
    async def steps():
        async with source.feeding():
            return [group.task for step in range(times) for group in await source.take(policy_version=step)]

    return asyncio.run(steps())


def test_epoch_draws_every_task_once_with_unique_uids():
    taken = take(live(), times=5)
    assert sorted(task.index for task in taken[:5]) == sorted(task.index for task in taken[5:]) == [0, 1, 2, 3, 4]
    assert len({task.uid for task in taken}) == 10


def test_a_source_resumes_at_its_position():
    assert take(live(position=4), times=3) == take(live(), times=5)[4:]


def test_groups_in_flight_before_a_resume_come_first():
    source, uids = live(), [task_of(draw, TASKS, 7).uid for draw in (Draw(0, 4, 1), Draw(0, 0), Draw(0, 2))]
    source.position, source.pending = 4, [Draw(0, 4, 1), Draw(0, 0), Draw(0, 2)]
    taken = take(source, times=3)
    assert [task.uid for task in taken[:3]] == uids
    assert taken[3:] == take(live(position=4), times=2)[:3]
    assert (source.position, source.pending) == (7, [])


def test_saved_conversations_are_groups_of_one_rendered_when_taken():
    rendered = []

    def render(row: int) -> Trajectory:
        rendered.append(row)
        return Trajectory([Segment(Author.PROMPT, [1]), Segment(Author.DEMONSTRATION, [row + 2])])

    source = SavedSource(render, TaskOrder(5, seed=0, shuffle=False), 2)
    assert [task.index for task in take(source, times=2)] == rendered == [0, 1, 2, 3]
    assert source.position == 4


def test_stored_steps_are_served_in_order_from_the_position():
    source = StoredSource(lambda step: [Group(TASKS[step], [])], [1, 2, 4])
    source.position = 1
    assert [task.index for task in take(source, times=2)] == [2, 4]
    assert source.position == 3
