"""Recording of conversations: what is one rollout, when it is saved, and what a client can and cannot do."""

from __future__ import annotations

import asyncio

import pytest
from recording_builders import ADMIN, QUESTION, SHARED, saved, served

from agentrl.cli.main import main
from agentrl.errors import ConfigError
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Stop

SLOW = """
COUNT = []

def reply(context):
    COUNT.append(1)
    return f"draw {len(COUNT)}"
"""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(one) -> list[str]:
    return [message["content"] for trajectory in one.rollout.trajectories for message in trajectory.messages]


def test_each_conversation_with_the_shared_key_is_a_rollout(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run", script=SLOW) as gateway:
            first = await gateway.chat(QUESTION)
            other = await gateway.chat([user("Another question?")])
            again = await gateway.chat(QUESTION)  # its answer was delivered: another conversation
            await gateway.chat([*QUESTION, again, user("And 1+1?")])
            await gateway.chat([*QUESTION, first, user("And 2+2?")])
            assert (first["content"], other["content"], again["content"]) == ("draw 1", "draw 2", "draw 3")

    asyncio.run(talk())
    rollouts = saved(tmp_path / "run")
    assert sorted(map(said, rollouts)) == [
        ["Another question?", "draw 2"],
        ["What is 2+3?", "draw 1", "And 2+2?", "draw 5"],
        ["What is 2+3?", "draw 3", "And 1+1?", "draw 4"],
    ]
    assert all(one.rollout.valid and one.rollout.stop is Stop.FINISHED for one in rollouts)
    assert len({one.task.uid for one in rollouts}) == 3
    assert main(["replay", str(tmp_path / "run"), "audit"]) == 0


def test_two_clients_with_the_same_question_at_once_get_an_answer_each(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run", script=SLOW) as gateway:
            answers = await asyncio.gather(*(gateway.chat(QUESTION) for _ in range(8)))
            follow = [gateway.chat([*QUESTION, each, user("And?")]) for each in answers]
            await asyncio.gather(*follow)
            assert len({each["content"] for each in answers}) == 8

    asyncio.run(talk())
    assert [len(said(one)) for one in saved(tmp_path / "run")] == [4] * 8


def test_everything_with_the_key_of_a_rollout_belongs_to_it_and_it_ends_with_a_reward(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run") as gateway:
            (key,) = await gateway.open(ground_truth="5", data_source="sums", extra_info={"note": [1]})
            answer = await gateway.chat(QUESTION, key)
            await gateway.chat([*QUESTION, answer, user("Sure?")], key)
            await gateway.chat([{"role": "system", "content": "Write a title."}, *QUESTION], key)
            listed = (await gateway.send("GET", "/rollouts"))[1]["rollouts"]
            assert [(each["key"], each["num_turns"]) for each in listed] == [(key, 3)]
            ended = await gateway.end(key, reward=0.5, rewards={"style": 2})
            assert (ended["num_turns"], ended["stop"]) == (3, "finished")
            (one,) = saved(tmp_path / "run")  # before the gateway ends
            assert str(tmp_path / "run/trajectories/train/step-000001.parquet") == ended["file"]
            assert (await gateway.send("POST", f"/rollouts/{key}/end"))[0] == 404
            assert (await gateway.send("POST", "/v1/chat/completions", {"messages": QUESTION}, key))[0] == 401
        return one

    one = asyncio.run(talk())
    assert one.rollout.rewards == {"score": 0.5, "style": 2.0}
    assert (one.task.ground_truth, one.task.data_source, one.task.extra_info) == ("5", "sums", {"note": [1]})
    assert one.task.messages == QUESTION
    assert len(one.rollout.trajectories) == 2
    assert main(["replay", str(tmp_path / "run"), "audit"]) == 0


def test_the_rollouts_of_a_task_are_a_group_with_a_row_for_each(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run", rollout={"n": 3}) as gateway:
            assert (await gateway.send("POST", "/v1/chat/completions", {"messages": QUESTION}, SHARED))[0] == 401
            unused = await gateway.open()
            keys = await gateway.open()
            for key in keys[1:]:
                await gateway.chat(QUESTION, key)
            await gateway.end(keys[2], reward=1)
            running = [one.rollout.error for one in saved(tmp_path / "run")]
            assert running[2] is None
            assert all("killed before this rollout ended" in error for error in running[:2])
            assert (await gateway.end(unused[0]))["file"] is None

    asyncio.run(talk())
    rollouts = saved(tmp_path / "run")
    assert [one.rollout.rewards for one in rollouts] == [{}, {}, {"score": 1.0}]
    assert [one.rollout.valid for one in rollouts] == [False, True, True]
    assert "no request used the key" in rollouts[0].rollout.error
    assert main(["replay", str(tmp_path / "run"), "audit"]) == 0


def test_a_file_holds_the_tasks_of_a_step_and_full_ones_leave_the_memory(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run", data={"train_batch_size": 2}) as gateway:
            for number in range(5):
                await gateway.chat([user(f"{number}?")])
            await asyncio.gather(*(gateway.end(each.key) for each in gateway.recording.rollouts))
            assert gateway.recording.rollouts.files.num_kept == 1
            assert len(gateway.recording.rollouts) == 0

    asyncio.run(talk())
    store = TrajectoryStore(tmp_path / "run/trajectories/train")
    assert [[group.task.messages[0]["content"] for group in store.groups(step)] for step in store.steps] == [
        ["0?", "1?"], ["2?", "3?"], ["4?"],
    ]  # fmt: skip
    assert main(["replay", str(tmp_path / "run"), "audit"]) == 0


def test_idle_rollouts_end_and_the_longest_idle_one_makes_room(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run", trainer={"max_concurrent_rollouts": 2}) as gateway:
            rollouts = gateway.recording.rollouts
            for number in range(3):
                await gateway.chat([user(f"{number}?")])
            assert [said(one)[0] for one in saved(tmp_path / "run")] == ["0?"]
            assert (await gateway.send("POST", "/rollouts", {}))[0] == 429
            assert await rollouts.end_idle(3600) == []
            assert len(await rollouts.end_idle(0)) == 2
            await gateway.open()

    asyncio.run(talk())
    assert sorted(said(one)[0] for one in saved(tmp_path / "run")) == ["0?", "1?", "2?"]


def test_a_later_process_continues_the_folder(task_folder, tmp_path):
    async def talk(text: str):
        async with served(task_folder, tmp_path / "run", data={"train_batch_size": 2}) as gateway:
            await gateway.chat([user(text)])

    for text in "abc":
        asyncio.run(talk(text))
    rollouts = saved(tmp_path / "run")
    assert [(one.step, one.task.index, said(one)[0]) for one in rollouts] == [(1, 0, "a"), (1, 1, "b"), (2, 2, "c")]
    assert main(["replay", str(tmp_path / "run"), "audit"]) == 0


FAILS_LATER = """
COUNT = []

def reply(context):
    COUNT.append(1)
    if len(COUNT) > 1:
        raise ValueError("no")
    return "ok"
"""


def test_rollouts_of_a_training_run_are_not_mixed_with_recorded_ones(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run"):
            pass

    TrajectoryStore(tmp_path / "run/trajectories/train").write(1, [])
    with pytest.raises(ConfigError, match="has rollouts that `agentrl gateway` did not record: name a new folder"):
        asyncio.run(talk())


def test_an_engine_that_fails_is_no_fault_of_the_model(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run", script=FAILS_LATER) as gateway:
            answer = await gateway.chat(QUESTION)
            body = {"model": "m", "messages": [*QUESTION, answer, user("Sure?")]}
            assert (await gateway.send("POST", "/v1/chat/completions", body, SHARED))[0] == 500

    asyncio.run(talk())
    (one,) = saved(tmp_path / "run")
    assert (one.rollout.infra_failed, one.rollout.valid, said(one)) == (True, False, [QUESTION[0]["content"], "ok"])
    assert one.rollout.error.startswith("InfraError: the engine failed: ValueError: no")
    assert main(["replay", str(tmp_path / "run"), "audit"]) == 0


def test_tokens_of_a_conversation_that_has_not_begun_are_counted(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run") as gateway:
            body = {"model": "m", "messages": QUESTION}
            status, counted = await gateway.send("POST", "/v1/messages/count_tokens", body, SHARED)
            assert (status, counted) == (200, {"input_tokens": 13})
            assert len(gateway.recording.rollouts) == 0

    asyncio.run(talk())


WRONG_BODIES = {
    b"{": "cannot be read",
    b"[1]": "expected an object",
    b"[" * 100_000: "nested too deeply",
    b'{"key": "x"}': "unknown field 'key': did you mean 'keys'?",
    b'{"keys": "abc"}': "keys: expected a list",
    b'{"keys": ["short"]}': "keys[0]: expected 16 to 128",
    b'{"keys": ["../../../../etc/passwd"]}': "keys[0]: expected 16 to 128",
    b'{"keys": ["the-key-of-all-clients"]}': "a key is in use",
    b'{"keys": ["aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbb"]}': "expected 1 (rollout.n), got 2",
    b'{"data_source": ""}': "data_source: expected text",
    b'{"extra_info": 3}': "extra_info: expected an object",
    b'{"ground_truth": ' + b"9" * 400 + b"}": "400 digits",
    b'"' + b"x" * 2**20 + b'"': "more than 1048576 bytes",
}
WRONG_REWARDS = [
    b'{"reward": "1"}',
    b'{"reward": NaN}',
    b'{"reward": true}',
    b'{"reward": 1e999}',
    b'{"rewards": [1]}',
    b'{"rewards": {"a": null}}',
    b'{"reward": 1, "rewards": {"score": 1}}',
    b'{"score": 1}',
]


def test_wrong_bodies_are_refused_with_the_field_and_change_nothing(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run") as gateway:
            for body, complaint in WRONG_BODIES.items():
                status, answer = await gateway.send("POST", "/rollouts", body)
                assert (status, complaint in answer["error"]["message"]) == (400, True), answer
            assert len(gateway.recording.rollouts) == 0
            (key,) = await gateway.open()
            for body in WRONG_REWARDS:
                assert (await gateway.send("POST", f"/rollouts/{key}/end", body))[0] == 400, body
            assert gateway.recording.rollouts.find(key)

    asyncio.run(talk())


def test_only_the_admin_key_opens_and_ends_rollouts(task_folder, tmp_path):
    async def talk():
        async with served(task_folder, tmp_path / "run") as gateway:
            (key,) = await gateway.open()
            for wrong in (SHARED, key, "", "x" * 40, "ü"):
                for method, path in (("POST", "/rollouts"), ("GET", "/rollouts"), ("POST", f"/rollouts/{key}/end")):
                    assert (await gateway.send(method, path, {}, wrong))[0] == 401
            assert (await gateway.send("POST", "/rollouts", {}, ADMIN, Origin="http://evil.example"))[0] == 403
            assert (await gateway.send("DELETE", f"/rollouts/{key}"))[0] == 404
            assert (await gateway.send("POST", "/v1/chat/completions", {"messages": QUESTION}, ADMIN))[0] == 401
            assert len(gateway.recording.rollouts) == 1

    asyncio.run(talk())
