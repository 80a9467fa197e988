"""Whatever a client does to the messages that it sends back, every turn is continued, recorded and trained once."""

from __future__ import annotations

import asyncio
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_builders import ListEngine, call
from session_builders import Client, dumped, session, user
from test_session import check_tokens

pytestmark = pytest.mark.property

words = st.text(st.sampled_from("abc é\n{}[]\"'\\<>/日"), max_size=12)
numbers = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=3)


@st.composite
def replies(draw: st.DrawFn) -> str:
    """What the model writes in a turn: thoughts, text, calls, or all of them; the text of no two turns is equal."""
    thoughts = draw(st.sampled_from(["", "<think>\nLet me see.\n</think>\n\n"]))
    text = f"{draw(words)} {draw(st.integers(0, 10**6))}"
    calls = [call("add", **each) for each in draw(st.lists(arguments, max_size=2))]
    return thoughts + "\n".join([text, *calls])


def as_javascript(value: object) -> object:
    """Numbers as JavaScript reads and writes them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, list):
            return [as_javascript(each) for each in value]
        return {key: as_javascript(each) for key, each in value.items()} if isinstance(value, dict) else value
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 1e21 else number


class Rewriter:
    """Writes a conversation anew for every request, in another way."""

    def __init__(self, draw: st.DataObject, keeps_ids: bool) -> None:
        self.draw, self.keeps_ids = draw, keeps_ids

    def choose(self, *options):
        return self.draw.draw(st.sampled_from(options))

    def __call__(self, messages):
        return [part for message in messages for part in self.message(copy.deepcopy(message))]

    def message(self, message):
        if message["role"] == "assistant":
            return self.assistant(message)
        if message["role"] == "tool" and not self.keeps_ids:
            message.pop("tool_call_id", None)
        message["content"] = self.content(message["content"])
        return [message | self.choose({}, {"cache_control": {"type": "ephemeral"}}, {"name": None})]

    def assistant(self, message):
        text = message["content"]
        calls = [self.call(each, at) for at, each in enumerate(message.pop("tool_calls", ()))]
        if not text.strip() and calls:
            text = self.choose(text, None, "")
        elif self.choose(False, True):
            text = f"<think>\nsomething\n</think>\n{text}"
        message["content"] = text if text is None else self.content(text)
        message |= self.choose({}, {"reasoning_content": "other thoughts"}, {"annotations": None, "id": "message"})
        if not calls:
            return [message]
        if self.choose(False, True):  # pieces of a Responses conversation
            return [message, *({"role": "assistant", "content": None, "tool_calls": [each]} for each in calls)]
        return [message | {"tool_calls": calls}]

    def call(self, each, at):
        if not self.keeps_ids:
            each.pop("id")
        function = each["function"]
        read = json.loads(function["arguments"])
        function["arguments"] = self.choose(
            function["arguments"], read, dumped(read), dumped(as_javascript(read)), json.dumps(read, sort_keys=True)
        )
        return each | {"index": at}

    def content(self, text):
        cut = self.draw.draw(st.integers(0, len(text)))
        parts = [{"type": "text", "text": text[:cut]}, {"type": "text", "text": text[cut:], "cache_control": None}]
        return self.choose(text, [{"type": "text", "text": text}], parts, f"{text}\n")


@given(st.data(), st.lists(replies(), min_size=1, max_size=5), st.booleans())
def test_every_request_of_a_conversation_continues_it(data, turns, keeps_ids):
    async def go():
        engine = ListEngine(*turns)
        made = session(engine, max_response_length=10_000)
        client = Client(made, rewritten=Rewriter(data, keeps_ids))
        new = []
        for _ in turns:
            if data.draw(st.booleans()):  # a cut stream, or a client that repeats
                await client.ask(*new, deliver=False)
                new = []
            await client.ask(*new)
            calls = client.answers[-1].calls
            new = client.results(*(data.draw(words) for _ in calls)) if calls else [user(data.draw(words))]
        return made, engine

    made, engine = asyncio.run(go())
    rollout = made.rollout()
    (trajectory,) = rollout.trajectories
    assert len(engine.requests) == trajectory.num_turns == len(turns)
    for request in engine.requests:
        assert request.token_ids == trajectory.token_ids[: len(request.token_ids)]
    check_tokens(made, rollout)


@given(st.data(), st.booleans())
def test_whatever_is_asked_everything_sampled_is_recorded_once(data, keeps_ids):
    """Several clients that go back, ask again, edit, and give up, one after the other."""

    async def go():
        texts = data.draw(st.lists(replies(), min_size=1, max_size=8))
        made = session(ListEngine(*texts), gateway={"train": "all"}, max_response_length=10_000)
        rewriter = Rewriter(data, keeps_ids)
        clients = [Client(made, [user(f"Task {number}")], rewritten=rewriter) for number in range(2)]
        for _ in texts:
            client = data.draw(st.sampled_from(clients))
            match data.draw(st.sampled_from(["go on", "go back", "again", "edit"])):
                case "go back" if len(client.messages) > 1:
                    del client.messages[data.draw(st.integers(1, len(client.messages) - 1)) :]
                case "edit":
                    client.messages[0] = user(data.draw(words))
                case "again" if client.answers:
                    made.delivered((await made.answer(client.request())).turn_id)
            if client.messages[-1]["role"] == "assistant":
                calls = client.answers[-1].calls if client.messages[-1].get("tool_calls") else ()
                client.messages += client.results(*("result" for _ in calls)) if calls else [user(data.draw(words))]
            await client.ask(deliver=data.draw(st.booleans()))
            if client.messages[-1]["role"] != "assistant":
                client.messages.append(user("Are you there?"))
        return made

    made = asyncio.run(go())
    rollout = made.rollout()
    check_tokens(made, rollout)
    assert sum(each.num_turns for each in rollout.trajectories) == len(made.generate._engine.requests)
    assert sum(each.num_trained_tokens for each in rollout.trajectories) == sum(
        len(segment) for each in rollout.trajectories for segment in each.segments if segment.logprobs is not None
    )
