"""Tools with recorded answers: in recorded order, failed calls included; other calls get no answer."""

from __future__ import annotations

import asyncio

import pytest
from tool_builders import Recorder, call, schema, task

from agentrl.agent_loops.limits import Limits, truncate
from agentrl.chat.base import ParsedCall
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import ConfigError, DataError
from agentrl.tools.function import as_tool
from agentrl.tools.replayed import RecordedToolbox, Recording
from agentrl.tools.result import ToolResult
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome, ToolCall

SCHEMAS = [schema("recorder", place={"type": "string"})]


def said(arguments: str, result: str, outcome: Outcome = Outcome.OK, **fields) -> ToolCall:
    return ToolCall("recorder", arguments, result, outcome, **fields)


def play(recorded, *calls, unrecorded="error", live=(), row=None, rewards=None, schemas=SCHEMAS):
    """(text, outcome, reward) of each call; the recording; the rewards of the whole rollout."""
    row = row or task(uid="t")

    async def main():
        box = Toolbox(live)
        recording = Recording("t", recorded, rewards or {})
        toolbox = RecordedToolbox(schemas, MultiTurnConfig(), unrecorded, box).playing(recording)
        async with toolbox.session(row) as session:
            results = [await session.call(each) for each in calls]
        await toolbox.close()
        await box.close()
        return [(each.text, each.outcome, each.reward) for each in results], recording, session.rewards

    return asyncio.run(main())


def test_equal_calls_get_recorded_answers_in_order():
    recorded = [
        said('{"place": "a", "n": 1}', "first", reward=0.5),
        said('{"place": "b"}', "slow", Outcome.TIMEOUT),
        said('{"n":1,"place":"a"}', "second", Outcome.TOOL_ERROR),
    ]
    calls = [call("recorder", n=1, place="a"), call("recorder", place="b"), call("recorder", place="a", n=1)]
    results, recording, rewards = play(recorded, *calls, rewards={"recorder": 0.25})
    assert results == [
        ("first", Outcome.OK, 0.5),
        ("slow", Outcome.TIMEOUT, 0.0),
        ("second", Outcome.TOOL_ERROR, 0.0),
    ]
    assert (recording.num_answered, recording.unrecorded) == (3, [])
    assert rewards == {"recorder": 0.25}


def test_unrecorded_call_ends_the_rollout_with_its_name():
    recorded = [said('{"place": "a"}', "only once"), said('{"place": "b"}', "never run", Outcome.LIMIT_ERROR)]
    calls = [call("recorder", place="a"), call("recorder", place="a"), call("recorder", place="b")]
    results, recording, _ = play(recorded, *calls)
    assert [outcome for _, outcome, _ in results] == [Outcome.OK, Outcome.INFRA_ERROR, Outcome.INFRA_ERROR]
    assert results[1][0] == 'not recorded: recorder({"place": "a"})'
    assert recording.unrecorded == ['recorder({"place": "a"})', 'recorder({"place": "b"})']


def test_stub_answers_unknown_and_counts_as_a_call():
    results, _, _ = play([], call("recorder", place="a"), unrecorded="stub")
    ((text, outcome, _),) = results
    assert "not recorded" in text
    assert outcome is Outcome.TOOL_ERROR


def test_live_runs_the_tool_and_releases_it():
    tool = Recorder()
    recorded = [said('{"place": "a"}', "from the recording")]
    calls = [call("recorder", place="a"), call("recorder", place="b")]
    results, recording, rewards = play(recorded, *calls, unrecorded="live", live=[tool])
    assert [text for text, _, _ in results] == ["from the recording", "call 1"]
    assert (len(tool.calls), tool.released, rewards) == (1, tool.created, {"recorder": 1.0})
    assert recording.unrecorded == ['recorder({"place": "b"})']


def test_live_needs_the_recorded_tools():
    def other(place: str) -> str:
        """Other."""
        return place

    with pytest.raises(ConfigError, match="'recorder' is not one of"):
        RecordedToolbox(SCHEMAS, MultiTurnConfig(), "live", Toolbox([as_tool(other)]))


def test_replayed_malformed_calls_are_read_like_live_ones():
    malformed = ParsedCall("recorder", '{"place": ', "half of it is missing.")
    wrong = call("recorder", place=3)
    unknown = call("recordr", place="a")
    live, _, _ = play([], malformed, wrong, unknown, unrecorded="live", live=[Recorder()])
    asked = [malformed, wrong, unknown]

    async def truly():
        box = Toolbox([type("Typed", (Recorder,), {"tool_schema": SCHEMAS[0]})()])
        async with box.session(task()) as session:
            return [await session.call(each) for each in asked]

    expected = [(each.text, each.outcome, 0.0) for each in asyncio.run(truly())]
    assert live == play([], *asked)[0] == expected
    assert {outcome for _, outcome, _ in expected} == {Outcome.FORMAT_ERROR}


def test_a_recorded_format_error_is_answered_as_it_was():
    recorded = [said('{"place": ', "Error: as told then", Outcome.FORMAT_ERROR)]
    results, _, _ = play(recorded, ParsedCall("recorder", '{"place": ', "told otherwise now."))
    assert results == [("Error: as told then", Outcome.FORMAT_ERROR, 0.0)]


def test_tools_of_a_row_must_match_the_recorded_row():
    both = [*SCHEMAS, schema("second")]
    chosen = task(uid="t", extra_info={"tool_config": {"available_tools": ["second"]}})
    results, _, _ = play([], call("recorder", place="a"), row=chosen, schemas=both)
    assert results[0][1] is Outcome.FORMAT_ERROR
    with pytest.raises(DataError, match="'t', not to 'u'"):
        play([], row=task(uid="u"))


@pytest.mark.parametrize("side", ["left", "middle", "right"])
def test_truncated_answer_is_not_truncated_again(side):
    """The recording has the text that the model was shown; the same limit does not change it."""
    limits = Limits(MultiTurnConfig(max_tool_response_length=11, tool_response_truncate_side=side), None, 100, 200)
    shown = truncate("abcdefghijklmnopqrstuvwxyz", 11, side)
    assert limits.shortened(ToolResult(shown, Outcome.OK)).text == shown


def test_a_recording_knows_the_observation_and_the_end_of_the_episode():
    recording = Recording("t", [said("{}", "first"), said("{}", "last")], {}, observation=" Go.", ended=True)

    async def main():
        toolbox = RecordedToolbox(SCHEMAS, MultiTurnConfig()).playing(recording)
        async with toolbox.session(task(uid="t")) as session:
            seen = [await session.start()]
            for _ in range(2):
                await session.call(call("recorder"))
                seen.append(session.ended)
        await toolbox.close()
        return seen

    assert asyncio.run(main()) == [" Go.", False, True]
