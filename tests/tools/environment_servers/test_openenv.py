"""Rollouts on a server of OpenEnv: what the model sees, rewards, failures, and hostile answers."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from fake_openenv import ACTION, ADD, LOST, SILENT, error, fake_openenv, observed
from server_builders import loaded, play, rollout, target
from tool_builders import call, task, until

from agentrl.errors import ConfigError, DataError
from agentrl.tools.base import InfraError
from agentrl.tools.environment_servers import bound
from agentrl.types.rollout import Outcome
from agentrl.utils import retries

DEEP = '{"type": "observation", "data": ' + "[" * 5000 + "]" * 5000 + "}"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.0)


def guesses():
    return [call("step", guess=number) for number in range(1, 10)]


def test_the_model_plays_until_the_server_is_done():
    with fake_openenv() as (url, server):
        played = play(f"openenv:{url}", *guesses())
    right = played.outcomes.index(("ok", '{"message": "right", "tries": 1}'))
    assert played.text == '\n\n{"message": "Guess a number from 1 to 9.", "tries": 0}'
    assert played.outcomes[:right] == [("ok", '{"message": "higher", "tries": 1}')] * right
    assert set(played.outcomes[right + 1 :]) <= {("tool_error", "Error: the episode has ended")}
    assert [each.reward for each in played.results[: right + 1]] == [-0.1] * right + [1.0]
    assert played.rewards == {"openenv": pytest.approx(1.0 - 0.1 * right)}
    assert played.ended
    assert [each["type"] for each in server.received] == ["reset", *["step"] * (right + 1), "close"]


def test_the_tool_is_the_servers_action():
    with fake_openenv() as (url, _):
        (schema,) = loaded(f"openenv:{url}").schemas
    assert (schema.name, schema.function.description) == ("step", "Guess the number.")
    expected = {key: value for key, value in ACTION.items() if key not in ("title", "description", "properties")}
    guess = {"type": "integer", "description": "from 1 to 9"}
    assert schema.function.parameters == {**expected, "properties": {"guess": guess}}


def test_tools_that_the_server_lists():
    with fake_openenv(lists_tools=True) as (url, server):
        played = play(f"openenv:{url}", call("add", a=1, b=2), call("add", a=13, b=2), call("add", a=1))
    assert played.outcomes == [
        ("ok", "3"),
        ("tool_error", "Error: Error calling tool 'add': 13 is bad luck"),
        ("format_error", "Error: invalid arguments for 'add': 'b' is a required property"),
    ]
    assert played.rewards == {"openenv": 0.0}
    assert server.received[-2]["data"] == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 13, "b": 2}}


def test_the_keys_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("GUESS_KEY", "secret-7")
    with fake_openenv() as (url, server):
        keys = {"tool": "guess", "description": "Guess!", "observation": "message", "reward": "last", "reset": ["low"]}
        environment = target(tmp_path, openenv=url, api_key_env="GUESS_KEY", **keys)
        (schema,) = loaded(environment).schemas
        played = play(environment, call("guess", guess=0), row=task(uid="u", extra_info={"low": 5}))
    assert (schema.name, schema.function.description) == ("guess", "Guess!")
    assert played.text == "\n\nGuess a number from 5 to 13."
    assert played.outcomes == [("ok", "higher")]
    assert played.rewards == {"world": -0.1}
    assert server.received[0]["data"].keys() == {"seed", "low"}
    assert server.headers[0]["Authorization"] == "Bearer secret-7"


def test_the_sum_and_the_last_reward(tmp_path):
    answers = [None, *(json.dumps(observed({}, reward)) for reward in (1, None, True, -0.5, None))]
    for kind, expected in (("sum", 1.5), ("last", -0.5)):
        with fake_openenv(answers=[*answers]) as (url, _):
            played = play(target(tmp_path, openenv=url, reward=kind), *guesses()[:5])
        assert played.rewards == {"world": expected}
        assert [each.reward for each in played.results] == [1.0, 0.0, 1.0, -0.5, 0.0]


@pytest.mark.parametrize("kind", ["sum", "last"])
def test_a_rollout_without_an_action_has_the_reward_0(tmp_path, kind):
    with fake_openenv() as (url, _):
        assert play(target(tmp_path, openenv=url, reward=kind)).rewards == {"world": 0.0}


def test_rollouts_of_a_group_start_with_the_same_seed():
    with fake_openenv() as (url, server):
        for uid in ("one", "one", "other"):
            play(f"openenv:{url}", row=task(uid=uid))
    seeds = [each["data"]["seed"] for each in server.received if each["type"] == "reset"]
    assert seeds[0] == seeds[1] != seeds[2]
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"board": "x.o"}, "x.o"),
        ({"board": [1]}, '{"board": [1]}'),
        ({"board": "é", "turn": "x"}, '{"board": "é", "turn": "x"}'),
        ({}, "{}"),
    ],
)
def test_an_observation_of_one_text_is_shown_as_it_is(observation, text):
    with fake_openenv(answers=[None, json.dumps(observed(observation))]) as (url, _):
        assert play(f"openenv:{url}", guesses()[0]).outcomes == [("ok", text)]


def test_mistakes_of_the_model_are_read_by_the_model():
    """A call that the server refuses, and one at which its code fails, do not end the rollout."""
    refused = error("VALIDATION_ERROR", errors=[{"loc": ["guess"], "msg": "too large"}, {"msg": "wrong"}, "odd"])
    with fake_openenv(answers=[None, json.dumps(refused)]) as (url, _):
        played = play(f"openenv:{url}", call("step", guess=99), call("step", guess=-1), call("step", guess=0))
    assert played.outcomes == [
        ("tool_error", "Error: 'guess': too large; wrong; odd"),
        ("tool_error", "Error: the guess is negative"),
        ("ok", '{"message": "higher", "tries": 1}'),
    ]


HOSTILE = {
    "no JSON": "<html>",
    "nested deeply": DEEP,
    "NaN": '{"type": "observation", "data": {"observation": {}, "reward": NaN, "done": false}}',
    "infinite": '{"type": "observation", "data": {"observation": {}, "reward": 1e999, "done": false}}',
    "a text as reward": json.dumps(observed({}, "1")),
    "a list as observation": json.dumps(observed([])),
    "a text as done": json.dumps(observed({}, 0, "no")),
    "no data": '{"type": "observation"}',
    "a list": "[1]",
    "another type": '{"type": "state", "data": {}}',
    "an unknown error": json.dumps(error("SESSION_ERROR")),
    "an error without data": '{"type": "error"}',
    "bytes": b"\x00",
    "too large": json.dumps(observed({"text": "x" * 5 * 2**20})),
    "lost": LOST,
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_nonsense_drops_the_rollout_and_the_action_is_not_repeated(answer):
    with fake_openenv(answers=[None, answer]) as (url, server), pytest.raises(InfraError, match="is not known"):
        play(f"openenv:{url}", *guesses()[:2])
    assert [each["type"] for each in server.received if each["type"] != "close"] == ["reset", "step"]


def test_the_outcomes_of_lost_connections():
    async def main(url):
        box = loaded(f"openenv:{url}")
        with suppress(InfraError):
            async with box.session(task(uid="u")) as session:
                results = [await session.call(each) for each in guesses()[:2]]
        await box.close()
        return results

    with fake_openenv(answers=[None, LOST]) as (url, _):
        one, other = asyncio.run(main(url))
    assert (one.outcome, other.outcome) == (Outcome.INFRA_ERROR, Outcome.TOOL_ERROR)
    assert one.text.startswith(f"Error: InfraError: row 0: OpenEnv server {url}: the server closed the connection")
    assert other.text == "Error: the environment cannot be used any more, because step failed"


def test_an_action_without_an_answer_is_a_timeout_and_the_reward_is_not_known():
    with (
        fake_openenv(answers=[None, SILENT]) as (url, server),
        pytest.raises(InfraError, match="cannot be used any more, because step did not end"),
    ):
        play(f"openenv:{url}", *guesses()[:2], timeout_s=0.05)
    assert len(server.received) == 2


@pytest.mark.parametrize("answer", [LOST, SILENT, "<html>", json.dumps(error("EXECUTION_ERROR", message="flaky"))])
def test_a_start_is_repeated(tmp_path, answer):
    with fake_openenv(answers=[answer, answer]) as (url, server):
        played = play(target(tmp_path, openenv=url, start_timeout_s=0.05 if answer is SILENT else 30), guesses()[0])
    assert [result.outcome for result in played.results] == [Outcome.OK]
    assert [each["type"] for each in server.received if each["type"] != "close"] == ["reset"] * 3 + ["step"]


def test_a_start_that_fails_again_and_again_drops_the_rollout():
    flaky = json.dumps(error("EXECUTION_ERROR", message="no disk"))
    with (
        fake_openenv(answers=[flaky] * 9) as (url, server),
        pytest.raises(
            InfraError, match=r"row 0: OpenEnv server .*: 5 tries failed, last error: EXECUTION_ERROR: no disk"
        ),
    ):
        play(f"openenv:{url}")
    assert len([each for each in server.received if each["type"] == "reset"]) == 5


def test_a_row_that_reset_refuses_ends_the_run(tmp_path):
    refused = error("VALIDATION_ERROR", errors=[{"loc": ["low"], "msg": "Input should be a valid integer"}])
    row = task(uid="u", index=4, extra_info={"low": "x"})
    with (
        fake_openenv(answers=[json.dumps(refused)]) as (url, _),
        pytest.raises(DataError, match=r"row 4: .* refuses the arguments of reset: 'low': Input should be"),
    ):
        play(target(tmp_path, openenv=url, reset=["low"]), row=row)


def test_rows_are_checked_before_the_run(tmp_path):
    with fake_openenv() as (url, _):
        box = loaded(target(tmp_path, openenv=url, reset=["low"]))
    with pytest.raises(DataError, match=r"needs the column 'low' .*: did you mean 'lo'"):
        box.check(task(extra_info={"lo": 1}))
    for name, complaint in (("world", "takes no arguments from the row"), ("step", "come from the model")):
        with pytest.raises(DataError, match=f"field 'tools_kwargs.{name}': .*{complaint}"):
            box.check(task(extra_info={"low": 1}, tools_kwargs={name: {"create_kwargs": {}}}))


def test_rollouts_wait_for_a_free_session(tmp_path):
    async def main(url):
        box = loaded(target(tmp_path, openenv=url, max_sessions=2))
        played = await asyncio.gather(*(rollout(box, *guesses(), row=task(uid=str(n))) for n in range(8)))
        await box.close()
        return played

    with fake_openenv(max_sessions=2) as (url, server):
        played = asyncio.run(main(url))
    assert all(each.ended for each in played)
    assert server.most_active == 2


def test_a_server_with_fewer_sessions_than_configured_is_named(tmp_path):
    async def main(url):
        box = loaded(target(tmp_path, openenv=url, max_sessions=2))
        try:
            async with box.session(task(uid="u")) as held:
                await held.start()
                await rollout(box)
        finally:
            await box.close()

    hint = "CAPACITY_REACHED: no session left; the server may accept fewer sessions than max_sessions=2: its own limit"
    with fake_openenv(max_sessions=1) as (url, server), pytest.raises(InfraError, match=hint):
        asyncio.run(main(url))
    assert server.num_refused == 5


def test_no_free_session_drops_the_rollout(monkeypatch):
    async def main(url):
        box = loaded(f"openenv:{url}")
        try:
            async with box.session(task(uid="u")) as held:
                await held.start()
                monkeypatch.setattr(bound, "WAIT_S", 0.01)
                await rollout(box)
        finally:
            await box.close()

    with (
        fake_openenv() as (url, _),
        pytest.raises(InfraError, match=r"'openenv': no session became free in 0.01 s \(max_sessions: 1\)"),
    ):
        asyncio.run(main(url))


def test_a_cancelled_rollout_frees_its_session():
    async def main(url):
        box = loaded(f"openenv:{url}")
        running = asyncio.ensure_future(rollout(box, *guesses()))
        await until(lambda: server.received)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        played = await rollout(box, *guesses())
        await box.close()
        return played

    with fake_openenv(answers=[SILENT], max_sessions=1) as (url, server):
        assert asyncio.run(main(url)).ended
    assert server.most_active == 1


def test_the_first_call_starts_a_session_that_was_not_started():
    async def main(url):
        box = loaded(f"openenv:{url}")
        async with box.session(task(uid="u")) as session:
            result = await session.call(guesses()[0])
        await box.close()
        return result, session.rewards

    with fake_openenv() as (url, _):
        result, rewards = asyncio.run(main(url))
    assert result.outcome is Outcome.OK
    assert rewards.keys() == {"openenv"}


def refusal(environment):
    with pytest.raises(ConfigError) as caught:
        loaded(environment)
    (problem,) = caught.value.problems
    assert problem.key == "rollout.multi_turn.environment"
    return problem.text


def test_a_server_that_does_not_run_is_named_with_what_to_start():
    text = refusal("openenv:http://127.0.0.1:9")
    where = "`rollout.multi_turn.environment`: the OpenEnv server at http://127.0.0.1:9 cannot be used: 5 tries failed"
    assert text.startswith(where)
    assert text.endswith("(start it in the folder of the environment: uvicorn server.app:app --port PORT)")


def test_a_busy_server_is_asked_again():
    with fake_openenv(statuses=[503, 429]) as (url, server):
        assert loaded(f"openenv:{url}").schemas
    assert server.statuses == []


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("text", "not an OpenEnv server: /schema answers 200"),
        ({"type": "object"}, "its action has no fields"),
        ({"type": "object", "properties": {"metadata": {}}}, "its action has no fields"),
        ({"type": "array", "properties": {"a": {}}}, "tool 'step' cannot be offered: its schema must have the type"),
        (
            {"type": "object", "properties": {"a": {"description": "x" * 70_000}}},
            "tool 'step' cannot be offered: its schema has",
        ),
    ],
)
def test_actions_that_cannot_be_offered(schema, complaint):
    with fake_openenv(schema=schema) as (url, _):
        assert complaint in refusal(f"openenv:{url}")


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ("no", "expected a list of tools, it sent 'no'"),
        ([], "expected a list of tools, it sent []"),
        ([{"name": "x"}], "expected a tool with 'name' and 'input_schema'"),
        ([{**ADD, "name": "a b"}], "tool 'a b' cannot be offered: the name"),
    ],
)
def test_lists_of_tools_that_cannot_be_offered(tools, complaint):
    with fake_openenv(lists_tools=True, answers=[json.dumps(observed({"tools": tools}))]) as (url, _):
        assert complaint in refusal(f"openenv:{url}")


def test_a_server_that_lists_its_tools_has_no_other(tmp_path):
    with fake_openenv(lists_tools=True) as (url, _):
        text = refusal(target(tmp_path, openenv=url, tool="act"))
    assert "the server lists its own tools, so 'tool' has no effect" in text


def test_a_missing_field_of_the_observation_is_named(tmp_path):
    with (
        fake_openenv() as (url, _),
        pytest.raises(InfraError, match="the observation has no field 'board', only message"),
    ):
        play(target(tmp_path, openenv=url, observation="board"))
