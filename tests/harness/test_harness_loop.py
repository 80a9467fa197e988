"""Rollouts of harnesses through the gateway: what is recorded, how they end, and what each failure becomes."""

from __future__ import annotations

import logging
import sys

import pytest
from harness_builders import PROGRAM, processes
from harness_rolls import LOOP, Rolls, check_tokens
from loop_builders import CHAT, ListEngine, call

from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import AgentRLError, ConfigError
from agentrl.harness import places
from agentrl.types.rollout import Stop
from agentrl.types.task import Task


@pytest.fixture
def rolls(tmp_path) -> Rolls:
    return Rolls(tmp_path)


PLACES = {
    "namespaces": {},
    "only the gateway": {"network": "gateway"},
    "sandbox": {"sandbox": {"kind": "local", "readonly": [str(PROGRAM.parent)], "python": "/usr/bin/python3"}},
}


@pytest.mark.parametrize("place", [*PLACES, "plain"])
def test_a_program_runs_a_rollout_wherever_it_runs(rolls, place, monkeypatch):
    if place == "plain":
        monkeypatch.setattr(places, "namespaces_problem", lambda: "hidden by the test")
    settings: dict[str, object] = dict(PLACES.get(place, {}))
    if place == "sandbox":
        settings["command"] = ["python3", str(PROGRAM), "tools"]
    (rollout,) = rolls(**settings)
    assert (rollout.stop, rollout.error, rollout.reward) == (Stop.FINISHED, None, 1.0)
    (trajectory,) = rollout.trajectories
    assert [segment.author.value for segment in trajectory.segments] == ["prompt", "model", "tool", "model"]
    assert "What is 2 + 3?" in CHAT.text(trajectory.segments[0].token_ids)
    check_tokens(rollout, rolls.engine)
    (seen,) = rolls.seen
    assert (seen["harness_exit_code"], seen["harness_output"], seen["harness_requests"]) == (0, "the answer is 5\n", 2)


def test_without_network_only_the_gateway_is_reached(rolls):
    code = f"""
import socket, runpy
for address in ("127.0.0.1", "192.0.2.1"):
    try:
        print(socket.create_connection((address, 22), 2))
    except OSError as error:
        print(type(error).__name__)
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""
    (rollout,) = rolls(command=[sys.executable, "-c", code, "tools"], network="gateway")
    assert rolls.seen[0]["harness_output"] == "ConnectionRefusedError\nOSError\nthe answer is 5\n"
    assert rollout.reward == 1.0


def test_a_coroutine_is_a_harness_too(rolls, tmp_path):
    (tmp_path / "own_harness.py").write_text(
        "import asyncio, json, urllib.request\n"
        "def ask(endpoint, text):\n"
        "    body = {'model': endpoint.model, 'messages': [{'role': 'user', 'content': text}]}\n"
        "    headers = {'Content-Type': 'application/json', 'Authorization': f'Bearer {endpoint.key}'}\n"
        "    address = f'{endpoint.root_url}/v1/chat/completions'\n"
        "    assert address == f'{endpoint.base_url}/chat/completions'\n"
        "    request = urllib.request.Request(address, json.dumps(body).encode(), headers)\n"
        "    with urllib.request.urlopen(request) as reply:\n"
        "        return json.load(reply)['choices'][0]['message']['content']\n"
        "async def run(task, endpoint):\n"
        "    answer = await asyncio.to_thread(ask, endpoint, task.messages[-1]['content'])\n"
        "    if answer == 'raise':\n"
        "        raise KeyError(answer)\n"
        "    return float(answer == task.ground_truth) / 2 if answer != 'reward' else None\n"
    )
    (rollout,) = rolls("5", function="own_harness.py:run")
    assert (rollout.stop, rollout.reward, rolls.seen) == (Stop.FINISHED, 0.5, [])
    (rollout,) = rolls("reward", function="own_harness.py:run")
    assert (rollout.reward, len(rolls.seen)) == (0.0, 1)
    (rollout,) = rolls("raise", function="own_harness.py:run")
    assert (rollout.stop, rolls.seen[-1]["harness_exit_code"]) == (Stop.FINISHED, 1)
    assert "KeyError: 'raise' (" in str(rolls.seen[-1]["harness_output"])
    (rollout,) = rolls("raise", function="own_harness.py:run", on_exit="fail")
    assert rollout.stop is Stop.ERROR
    assert "KeyError: 'raise' (" in str(rollout.error)


def test_a_harness_is_ended_at_a_limit_of_the_rollout(rolls):
    (rollout,) = rolls(*["no"] * 3, mode="insists", multi_turn={"max_assistant_turns": 2})
    assert (rollout.stop, rollout.error) == (Stop.MAX_ASSISTANT_TURNS, None)
    assert sum(trajectory.num_turns for trajectory in rollout.trajectories) == 2
    assert rolls.seen[0]["harness_exit_code"] is None


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"deadline_s": 2.0}, {"multi_turn": {"rollout_timeout_s": 2.0}}])
def test_a_harness_that_hangs_is_ended_at_the_deadline_and_keeps_its_turns(rolls, limits):
    (rollout,) = rolls("5", mode="hangs", **limits)
    assert (rollout.stop, rollout.reward) == (Stop.DEADLINE, 1.0)
    assert rollout.trajectories[0].num_turns == 1


@pytest.mark.slow
def test_a_turn_that_the_deadline_cuts_off_is_kept(rolls):
    (rollout,) = rolls(None, mode="hangs", multi_turn={"rollout_timeout_s": 2.0})
    assert (rollout.stop, rollout.trajectories[0].num_turns) == (Stop.DEADLINE, 1)
    assert rollout.trajectories[0].num_trained_tokens == 2


def test_the_error_of_a_harness_after_a_turn_is_scored_or_fails(rolls, caplog):
    with caplog.at_level(logging.WARNING):
        one, other = rolls("5", "4", mode="dies", count=2)
    assert [rollout.stop for rollout in (one, other)] == [Stop.FINISHED, Stop.FINISHED]
    assert {rollout.reward for rollout in (one, other)} == {1.0, 0.0}
    assert [seen["harness_exit_code"] for seen in rolls.seen] == [3, 3]
    (line,) = [record.getMessage() for record in caplog.records if "the harness" in record.getMessage()]
    assert line == "the harness ended with exit code 3: cannot continue with KEY (reported once)"
    (rollout,) = rolls("5", mode="dies", on_exit="fail")
    assert (rollout.stop, len(rollout.trajectories)) == (Stop.ERROR, 1)
    assert rollout.error == "the harness ended with exit code 3: cannot continue with KEY"
    assert not rollout.valid


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("silent", "the harness got no turn: ended with exit code 0: nothing to do"),
        ("failing", "the harness got no turn: ended with exit code 4: no configuration"),
    ],
)
def test_a_harness_that_asks_for_no_turn_has_failed(rolls, mode, error):
    (rollout,) = rolls("5", mode=mode)
    assert (rollout.stop, rollout.error, rolls.seen) == (Stop.ERROR, error, [])


def test_a_prompt_that_is_too_long_is_named(rolls):
    task = Task([{"role": "user", "content": "word " * 5000}], ground_truth="5", data_source="sums", uid="t0")
    (rollout,) = rolls("5", mode="dies", task=task)
    assert rollout.stop is Stop.ERROR
    assert "data.max_prompt_length" in str(rollout.error)


def test_a_command_that_does_not_exist_ends_the_run(rolls):
    with pytest.raises(ConfigError, match="harness 'tested': cannot run 'no-such-agent': No such file or directory"):
        rolls("5", command=["no-such-agent", "{instruction}"])


def test_an_error_of_the_engine_is_the_rollouts_error(rolls):
    class Broken(ListEngine):
        async def generate(self, request):
            raise RuntimeError("the engine broke")

    (rollout,) = rolls(mode="insists", engine=Broken("5"))
    assert rollout.stop is Stop.ERROR
    assert "the engine broke" in str(rollout.error)


def test_requests_at_the_same_time_are_trajectories_of_one_rollout(rolls):
    (rollout,) = rolls("a", "b", "c", "d", mode="threads", multi_turn={"max_assistant_turns": 9})
    assert rollout.stop is Stop.FINISHED
    assert len(rollout.trajectories) == 4
    check_tokens(rollout, rolls.engine)
    assert sorted(str(rolls.seen[0]["harness_output"]).split()) == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_rollouts_run_beside_each_other_with_keys_of_their_own(rolls):
    rollouts = rolls(*[call("add", a=1, b=1)] * 6, *["2"] * 6, count=6, max_running=3, max_starting=2)
    assert [rollout.stop for rollout in rollouts] == [Stop.FINISHED] * 6
    assert sum(len(rollout.trajectories) for rollout in rollouts) == 6


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("place", [{}, {"sandbox": PLACES["sandbox"]["sandbox"]}], ids=["namespaces", "sandbox"])
def test_64_rollouts_run_at_once(rolls, place):
    engine = ScriptedEngine(lambda text: LOOP["<tool_response>" in text], tokenizer=CHAT.tokenizer, of_text=True)
    command = ["python3", str(PROGRAM), "tools"]
    before = set(processes(str(PROGRAM)))
    rollouts = rolls(engine=engine, count=64, command=command, **place)
    assert [(rollout.stop, rollout.reward) for rollout in rollouts] == [(Stop.FINISHED, 1.0)] * 64
    assert set(processes(str(PROGRAM))) == before


def test_the_instruction_is_the_user_message_with_the_system_message_before_it(rolls):
    task = Task(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
        ground_truth="5",
        uid="t0",
        extra_info={"place": {"x": 1}},
    )
    rolls("5", mode="dies", task=task)
    assert rolls.engine.requests[0].token_ids == CHAT.start([{"role": "user", "content": "Be brief.\n\nWhy?"}], ())
    code = f"import runpy, sys; print(sys.argv[2:], flush=True)\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    words = ["{system}", "{instruction_json}", "{row.place}", "{model}", "{{model}}", "{folder}"]
    rolls("5", command=[sys.executable, "-c", code, "dies", *words], task=task)
    assert rolls.engine.requests[0].token_ids == CHAT.start([{"role": "user", "content": "Why?"}], ())
    shown = str(rolls.seen[-1]["harness_output"]).splitlines()[0]
    assert shown == str(["Be brief.", '"Why?"', '{"x": 1}', "policy", "{{model}}", str(rolls.file.parent)])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "not the roles user, assistant"),
        ([], "of no message"),
        ([{"role": "user", "content": [{"type": "image", "image": "x"}]}], "the prompt has images"),
    ],
)
def test_a_task_that_is_no_instruction_is_refused(rolls, messages, message):
    with pytest.raises(AgentRLError, match=message):
        rolls("5", task=Task(messages, uid="t0"))
