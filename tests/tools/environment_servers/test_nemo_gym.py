"""Rollouts on a resources server of NeMo-Gym: sessions, calls, verification, failures."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from fake_nemo_gym import SILENT, TOOLS, fake_nemo_gym, row, rows_file
from server_builders import loaded, play, rollout, target
from tool_builders import call

from agentrl.config.data import DataConfig
from agentrl.data.tasks import read_task
from agentrl.errors import ConfigError, DataError
from agentrl.tools.base import InfraError
from agentrl.tools.environment_servers.nemo_gym.responses import response_object
from agentrl.types.rollout import Outcome
from agentrl.utils import retries


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.0)


def environment(folder, url, **keys):
    return target(folder, nemo_gym=url, tools=str(rows_file(folder / "rows.jsonl")), **keys)


def read(given):
    return read_task(DataConfig(), given, 0)


def add(count):
    return call("increment_counter", count=count)


def test_calls_go_to_the_session_of_the_rollout_and_verify_gives_the_reward(tmp_path):
    with fake_nemo_gym() as (url, server):
        played = play(environment(tmp_path, url), add(1), add(2), call("get_counter_value"), row=read(row()))
        other = play(environment(tmp_path, url), add(1), row=read(row()))
    assert played.outcomes == [("ok", '{"success":true}')] * 2 + [("ok", '{"count":6}')]
    assert (played.text, played.rewards, other.rewards) == ("", {"world": 1.0}, {"world": 0.0})
    assert server.counters == {"session0": 6, "session1": 4}
    assert server.bodies("/seed_session")[0] == row()


def test_sessions_at_the_same_time_are_apart(tmp_path):
    async def main(url):
        box = loaded(environment(tmp_path, url))
        rows = [read(row(initial=0, expected=2 * number)) for number in range(8)]
        played = await asyncio.gather(*(rollout(box, add(n), add(n), row=each) for n, each in enumerate(rows)))
        await box.close()
        return [each.rewards["world"] for each in played]

    with fake_nemo_gym() as (url, server):
        assert asyncio.run(main(url)) == [1.0] * 8
    assert sorted(server.counters.values()) == [2 * number for number in range(8)]


def test_verify_gets_the_row_and_the_conversation(tmp_path):
    with fake_nemo_gym() as (url, server):
        play(environment(tmp_path, url), row=read(row()), said="It is done.")
    (body,) = server.bodies("/verify")
    assert {key: body[key] for key in row()} == row()
    (message,) = body["response"]["output"]
    assert message["content"] == [{"type": "output_text", "text": "It is done.", "annotations": []}]
    assert (body["response"]["object"], body["response"]["tools"]) == ("response", TOOLS)


def test_a_conversation_as_items_of_the_responses_api():
    def called(name, **arguments):
        return {"type": "function", "function": {"name": name, "arguments": arguments}}

    calls = [called("increment_counter", count=1), called("get_counter_value")]
    messages = [
        {"role": "system", "content": "of the loop"},
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "done"},
        {"role": "tool", "content": [{"type": "text", "text": "4"}]},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "4"},
    ]
    output = response_object(read(row()), messages, [])["output"]
    assert [item.pop("id") for item in output] == [f"item_{number}" for number in range(7)]
    function = {"type": "function_call", "status": "completed"}
    assert output == [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {**function, "name": "increment_counter", "arguments": '{"count": 1}', "call_id": "call_1"},
        {**function, "name": "get_counter_value", "arguments": "{}", "call_id": "call_2"},
        {"type": "function_call_output", "output": "done", "call_id": "call_1"},
        {"type": "function_call_output", "output": "4", "call_id": "call_2"},
        {"type": "message", "role": "user", "content": "And?"},
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "4", "annotations": []}],
        },
    ]


def test_a_server_without_tools_verifies_answers(tmp_path):
    with fake_nemo_gym() as (url, server):
        played = play(f"nemo_gym:{url}", row=read(row(initial=6, tools=None)), said="done")
        box = loaded(f"nemo_gym:{url}")
    assert (played.rewards, box.schemas) == ({"nemo_gym": 1.0}, [])
    assert len(server.bodies("/verify")) == 1


def test_a_row_of_another_form_is_sent_with_its_prompt_and_the_tools(tmp_path):
    given = {"prompt": "Count.", "initial_count": 1, "expected_count": 1, "ground_truth": "one"}
    with fake_nemo_gym() as (url, server):
        assert play(environment(tmp_path, url), row=read(given)).rewards == {"world": 1.0}
    (body,) = server.bodies("/seed_session")
    asked = {"input": [{"role": "user", "content": "Count."}], "tools": TOOLS}
    expected = {"initial_count": 1, "expected_count": 1, "ground_truth": "one"}
    assert body == {"responses_create_params": asked, **expected}


def test_mistakes_of_the_model_are_read_by_the_model(tmp_path):
    faults = {"/get_counter_value": [500]}
    with fake_nemo_gym(faults=faults) as (url, _):
        played = play(environment(tmp_path, url), add(-1), add("1"), call("get_counter_value"), add(3), row=read(row()))
    assert played.outcomes == [
        ("tool_error", 'Error: {"detail":"count must not be negative"}'),
        ("format_error", "Error: invalid arguments for 'increment_counter': 'count' must be integer, not \"1\""),
        ("tool_error", 'Error: {"detail": "in trouble"}'),
        ("ok", '{"success":true}'),
    ]
    assert played.rewards == {"world": 1.0}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_call_that_the_server_did_not_run_drops_the_rollout_and_is_not_repeated(tmp_path, status):
    with (
        fake_nemo_gym(faults={"/increment_counter": [status]}) as (url, server),
        pytest.raises(InfraError, match="because increment_counter failed"),
    ):
        play(environment(tmp_path, url), add(1), row=read(row()))
    assert len(server.bodies("/increment_counter")) == 1


def test_a_call_without_an_answer_is_a_timeout(tmp_path):
    with (
        fake_nemo_gym(faults={"/increment_counter": [SILENT]}) as (url, server),
        pytest.raises(InfraError, match="because increment_counter did not end"),
    ):
        play(environment(tmp_path, url), add(1), row=read(row()), timeout_s=0.05)
    assert len(server.bodies("/increment_counter")) == 1


@pytest.mark.parametrize("faults", [[503], [429, 500], [SILENT]])
def test_a_start_is_repeated(tmp_path, faults):
    with fake_nemo_gym(faults={"/seed_session": [*faults]}) as (url, server):
        timeout_s = 0.05 if SILENT in faults else 30
        played = play(environment(tmp_path, url, start_timeout_s=timeout_s), add(3), row=read(row()))
    assert played.rewards == {"world": 1.0}
    assert len(server.bodies("/seed_session")) == len(faults) + 1


def test_a_start_that_fails_drops_the_rollout(tmp_path):
    with (
        fake_nemo_gym(faults={"/seed_session": [503] * 9}) as (url, _),
        pytest.raises(
            InfraError, match=r"row 0: NeMo-Gym server .*: 5 tries failed, last error: /seed_session answers 503"
        ),
    ):
        play(environment(tmp_path, url), row=read(row()))


def test_a_row_that_the_server_refuses_ends_the_run(tmp_path):
    given = {key: value for key, value in row().items() if key != "initial_count"}
    with (
        fake_nemo_gym() as (url, _),
        pytest.raises(DataError, match=r"row 0: .*/seed_session answers 422 .*initial_count"),
    ):
        play(environment(tmp_path, url), row=read(given))


@pytest.mark.parametrize(
    "fault",
    [
        500,
        SILENT,
        "<html>",
        "[]",
        "{}",
        '{"reward": NaN}',
        '{"reward": 1e999}',
        '{"reward": "1"}',
        "[" * 5000,
        "x" * 2**23,
    ],
    ids=range(10),
)
def test_a_verification_that_fails_drops_the_rollout(tmp_path, fault):
    keys = {"verify_timeout_s": 0.05} if fault is SILENT else {}
    with fake_nemo_gym(faults={"/verify": [fault]}) as (url, server), pytest.raises(InfraError):
        play(environment(tmp_path, url, **keys), add(3), row=read(row()))
    assert len(server.bodies("/verify")) == 1


def test_many_cookies_are_not_kept(tmp_path):
    with fake_nemo_gym(num_cookies=50) as (url, server):
        assert play(environment(tmp_path, url), *[add(1)] * 3, row=read(row())).rewards == {"world": 1.0}
    assert server.seen == [1, 20, 20]


def refusal(target_):
    with pytest.raises(ConfigError) as caught:
        loaded(target_)
    (problem,) = caught.value.problems
    assert problem.key == "rollout.multi_turn.environment"
    return problem.text


def test_a_server_that_does_not_run_is_named():
    text = refusal("nemo_gym:http://127.0.0.1:9")
    assert "the NeMo-Gym server at http://127.0.0.1:9 cannot be used: 5 tries failed" in text


@pytest.mark.parametrize(
    ("paths", "complaint"),
    [
        (["/seed_session"], "not a resources server: /openapi.json does not list both /seed_session and /verify"),
        (["/seed_session", "/verify", "/get_counter_value"], "it has no endpoint for tool 'increment_counter'"),
    ],
)
def test_a_server_without_the_endpoints_is_refused(tmp_path, paths, complaint):
    with fake_nemo_gym(paths=paths) as (url, _):
        assert complaint in refusal(environment(tmp_path, url))


def test_one_endpoint_may_serve_several_tools(tmp_path):
    with fake_nemo_gym(paths=["/seed_session", "/verify", "/{path}"]) as (url, _):
        assert [schema.name for schema in loaded(environment(tmp_path, url)).schemas] == [
            "increment_counter",
            "get_counter_value",
        ]


@pytest.mark.parametrize("answer", [404, "<html>", "[]", "[" * 5000])
def test_another_server_is_refused(answer):
    with fake_nemo_gym(faults={"/openapi.json": [answer]}) as (url, _):
        assert "/openapi.json" in refusal(f"nemo_gym:{url}")


def changed(**keys):
    return {**TOOLS[0], **keys}


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ([changed(name="seed_session")], "line 2: 'seed_session' is an endpoint of the server, not a tool"),
        ([changed(description="other")], "line 2: tool 'increment_counter' has another schema than in an earlier row"),
        ([changed(name="../verify")], "line 2: a tool cannot be offered: the name '../verify' cannot be part"),
        ([changed(parameters=[1])], "line 2: a tool cannot be offered: 'parameters' must be an object"),
        ([{"type": "web_search"}], "line 2: a tool cannot be offered: expected an object with 'name'"),
    ],
)
def test_tools_that_cannot_be_offered(tmp_path, tools, complaint):
    file = rows_file(tmp_path / "rows.jsonl", row(), row(tools=tools))
    assert complaint in refusal(target(tmp_path, nemo_gym="http://127.0.0.1:9", tools=str(file)))


def test_files_without_tools(tmp_path):
    for name, content, complaint in (
        ("rows.jsonl", "{}\n", "has no tools: remove 'tools'"),
        ("rows.jsonl", "{\n", "line 1: not JSON"),
        ("tools.json", "[]", "has no tools"),
    ):
        (tmp_path / name).write_text(content)
        assert complaint in refusal(target(tmp_path, nemo_gym="http://127.0.0.1:9", tools=name))


def test_a_list_of_tools_beside_the_yaml_file(tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps([TOOLS[0], {"type": "function", "function": TOOLS[1]}]))
    with fake_nemo_gym() as (url, _):
        box = loaded(target(tmp_path, nemo_gym=url, tools="tools.json"))
    assert [schema.name for schema in box.schemas] == ["increment_counter", "get_counter_value"]
    assert box.schemas[0].function.parameters == TOOLS[0]["parameters"]


def test_a_row_with_a_tool_that_the_file_lacks_is_refused(tmp_path):
    with fake_nemo_gym() as (url, _):
        box = loaded(environment(tmp_path, url))
    with pytest.raises(DataError, match="the row selects an unknown tool 'wipe'"):
        box.check(read(row(tools=[changed(name="wipe")])))
    box.check(read(row()))


def test_the_outcome_of_a_dropped_call(tmp_path):
    async def main(url):
        box = loaded(environment(tmp_path, url))
        with suppress(InfraError):
            async with box.session(read(row())) as session:
                result = await session.call(add(1))
        await box.close()
        return result

    with fake_nemo_gym(faults={"/increment_counter": [503]}) as (url, _):
        result = asyncio.run(main(url))
    assert result.outcome is Outcome.INFRA_ERROR
    assert "/increment_counter answers 503" in result.text
