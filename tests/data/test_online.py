"""Tasks added by rollouts: limited, checked, deduplicated, in an order that does not depend on timing."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from agentrl.concurrency.circuit_breaker import CircuitBreaker
from agentrl.concurrency.run import Offload
from agentrl.config.data import DataConfig, OnlineConfig
from agentrl.data import online
from agentrl.data.fields import FieldError
from agentrl.data.online import Inbox, OnlineOrder, OnlineTasks, add_task
from agentrl.data.order import Draw, TaskOrder
from agentrl.data.tasks import read_task
from agentrl.types.rollout import Group

FIRST = 100


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(online, "_WARNED", set())


def buffer(**config):
    return OnlineTasks(OnlineConfig(**config), lambda row, number: read_task(DataConfig(), row, number), FIRST)


def add(tasks, *rows, uid="a", number=0):
    """The tasks that one rollout adds."""

    async def attempt():
        return [add_task(row) for row in rows]

    return asyncio.run(tasks.inbox.within(uid, number, attempt)())


def prompts(tasks):
    rows = iter(tasks.draw, None)
    return [tasks[row].messages[0]["content"] for row in rows]


def test_added_task_equals_a_task_from_a_file():
    tasks = buffer(max_tasks=4)
    row = {"prompt": "2*3?", "reward_model": {"ground_truth": "6"}, "data_source": "mine", "level": 2}
    assert add(tasks, row) == [True]
    assert tasks.draw() is None  # available only after the groups are done
    tasks.check_added()
    task = tasks[tasks.draw()]
    assert (task.ground_truth, task.data_source, task.index, task.extra_info["level"]) == ("6", "mine", FIRST, 2)


def test_the_order_does_not_depend_on_which_rollout_was_faster():
    said = [("a", 0, "1"), ("a", 0, "2"), ("a", 1, "0"), ("b", 0, "3")]
    orders = set()
    for seed in range(5):
        tasks, shuffled = buffer(max_tasks=9), random.Random(seed).sample(said, len(said))
        for uid, number, prompt in shuffled:
            add(tasks, {"prompt": prompt}, uid=uid, number=number)
        tasks.check_added()
        orders.add(tuple(prompts(tasks)))
    assert orders == {("1", "2", "0", "3")}


@pytest.mark.parametrize(
    ("when_full", "left", "counted"), [("drop_oldest", "23", "dropped"), ("refuse", "01", "refused")]
)
def test_a_full_buffer_drops_the_oldest_or_refuses_and_counts(when_full, left, counted):
    tasks = buffer(max_tasks=2, when_full=when_full)
    for number in range(4):
        add(tasks, {"prompt": str(number)}, number=number)
    tasks.check_added()
    metrics = tasks.metrics()
    assert "".join(prompts(tasks)) == left
    assert metrics[f"online/{counted}"] == 2
    assert metrics["online/waiting"] == 2
    assert tasks.metrics()[f"online/{counted}"] == 0


def test_one_rollout_cannot_fill_memory():
    tasks = buffer(max_tasks=2)
    assert add(tasks, *({"prompt": str(number)} for number in range(5))) == [True, True, False, False, False]
    tasks.check_added()
    assert tasks.metrics()["online/refused"] == 3


def test_duplicates_of_waiting_tasks_are_dropped_but_drawn_tasks_may_repeat():
    tasks = buffer(max_tasks=9)
    for number in range(2):
        add(tasks, {"prompt": "x", "level": 1}, {"level": 1, "prompt": "x"}, number=number)
    tasks.check_added()
    assert tasks.metrics()["online/duplicates"] == 3
    assert prompts(tasks) == ["x"]
    add(tasks, {"prompt": "x", "level": 1})
    tasks.check_added()
    assert prompts(tasks) == ["x"]


def test_a_bad_row_is_a_warning_with_its_reason(caplog):
    tasks = buffer(max_tasks=9)
    assert add(tasks, {"promt": "x"}, {"prompt": object()}, {"prompt": "good"}) == [True, False, True]
    tasks.check_added()
    assert prompts(tasks) == ["good"]
    assert tasks.metrics()["online/bad"] == 1
    first, second = caplog.messages
    assert "not JSON: Object of type object" in first
    assert "no field 'prompt', expected text or a list of messages (data.prompt_key); did you mean 'promt'?" in second


def test_rows_refused_by_the_run_are_reported_too(caplog):
    def read(row, number):
        raise FieldError("its prompt has 2000 tokens, data.max_prompt_length is 1024")

    tasks = OnlineTasks(OnlineConfig(max_tasks=3), read, FIRST)
    add(tasks, {"prompt": "x"})
    tasks.check_added()
    assert tasks.draw() is None
    assert "a row was dropped: its prompt has 2000 tokens" in caplog.text


def test_add_task_without_a_receiver_returns_false_and_warns_once(caplog):
    assert [add_task({"prompt": "x"}), add_task({"prompt": "y"})] == [False, False]
    assert len(caplog.messages) == 1
    assert "data.online.max_tasks is 0" in caplog.text


def test_functions_and_coroutines_on_other_threads_add_to_their_own_rollout():
    """As for synchronous and asynchronous tools and rewards: many calls at a time reach the thread together."""
    inbox, offload, breaker = Inbox(9), Offload(), CircuitBreaker("tools")

    async def attempt(name):
        async def coroutine():
            return add_task({"prompt": f"{name} coroutine"})

        added = offload.run_function(lambda: add_task({"prompt": f"{name} function"}), 5.0, breaker)
        return await asyncio.gather(offload.run(coroutine, 5.0, breaker), added)

    async def all_at_once():
        attempts = [inbox.within(f"{at:02}", 0, lambda at=at: attempt(f"{at:02}")) for at in range(20)]
        return await asyncio.gather(*(each() for each in attempts))

    assert asyncio.run(all_at_once()) == [[True, True]] * 20
    offload.close()
    rows = [(uid, json.loads(text)["prompt"]) for uid, _, text in inbox._rows]
    assert sorted(rows) == [(f"{at:02}", f"{at:02} {kind}") for at in range(20) for kind in ("coroutine", "function")]


def order(tasks, **config):
    return OnlineOrder(TaskOrder(3, 0, shuffle=False), None, tasks, OnlineConfig(max_tasks=9, **config), seed=0)


def draws(mixed, positions):
    return [mixed.at(position).row for position in positions]


def test_added_tasks_get_their_share_of_draws():
    tasks = buffer(max_tasks=9)
    mixed = order(tasks, share=0.5)
    assert draws(mixed, range(4)) == [0, 1, 2, 0]
    add(tasks, *({"prompt": str(number)} for number in range(3)))
    mixed.observe([])
    rows = draws(mixed, range(4, 12))
    assert [row for row in rows if row >= FIRST] == [FIRST, FIRST + 1, FIRST + 2]
    assert [row for row in rows if row < FIRST] == [1, 2, 0, 1, 2]  # the order of the file rows continues
    assert {rows[place] >= FIRST for place in range(0, 6, 2)} != {rows[place] >= FIRST for place in range(1, 6, 2)}


def test_drawn_task_is_kept_while_in_flight():
    tasks = buffer(max_tasks=9)
    mixed = order(tasks, share=1.0)
    in_flight = [Draw(0, FIRST)]
    mixed.in_flight = lambda: in_flight
    add(tasks, *({"prompt": str(number)} for number in range(3)))
    mixed.observe([])
    assert draws(mixed, range(3)) == [FIRST, FIRST + 1, FIRST + 2]
    mixed.observe([])
    assert tasks[FIRST].messages[0]["content"] == "0"
    assert tasks[FIRST + 2].messages[0]["content"] == "2"  # the last draw may be requested again
    with pytest.raises(KeyError):
        tasks[FIRST + 1]


def test_a_saved_order_resumes_without_difference():
    tasks, rows = buffer(max_tasks=9), []
    mixed = order(tasks, share=0.25)
    add(tasks, *({"prompt": str(number)} for number in range(4)))
    mixed.observe([])
    draws(mixed, range(5))
    state = json.loads(json.dumps(mixed.state_dict()))
    for each in (mixed, order(others := buffer(max_tasks=9), share=0.25)):
        if each is not mixed:
            each.load_state_dict(state)
        rows.append(draws(each, range(5, 20)))
    assert rows[0] == rows[1]
    assert others.state_dict() == tasks.state_dict()


def test_the_order_of_the_files_learns_from_groups_of_its_own():
    seen = []

    class Learning(TaskOrder):
        def observe(self, groups):
            seen.extend(group.task.index for group in groups)

    tasks = buffer(max_tasks=9)
    files = Learning(3, 0, False)
    mixed = OnlineOrder(files, files, tasks, OnlineConfig(max_tasks=9), seed=0)
    groups = [Group(read_task(DataConfig(), {"prompt": "x"}, index), []) for index in (1, FIRST)]
    mixed.observe(groups)
    assert seen == [1]
