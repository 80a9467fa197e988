"""One key's session: which turn a request continues, what is sampled, and what is recorded."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from chat_families import family_tokenizer
from loop_builders import END, TOKENIZER, ListEngine, call
from session_builders import ADD, Client, echoed, listed, session, user

from agentrl.chat.format import ChatFormat
from agentrl.engines.base import SamplingParams
from agentrl.gateway.base import Finish, Refusal, RequestError, TurnRequest
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Outcome, Rollout, Stop
from agentrl.types.trajectory import Author


def run(coroutine):
    return asyncio.run(coroutine)


def check_tokens(made, rollout: Rollout) -> None:
    """Everything sampled is in one place, after the tokens that the engine got."""
    recording = made.generate.recording
    for trajectory in rollout.trajectories:
        start = 0
        for segment in trajectory.segments:
            if segment.author is Author.MODEL:
                claimed = recording.claim(trajectory.token_ids, start, start + len(segment), segment.logprobs)
                assert [part.token_ids for part in claimed] == [segment.token_ids]
            start += len(segment)
    assert recording._unclaimed == []


def test_a_request_continues_from_the_tokens_of_the_turn_that_it_shows():
    async def go():
        client = Client(listed(call("add", a=2, b=3), "It is 5."))
        await client.ask()
        await client.ask(*client.results("5"))
        return client

    client = run(go())
    made, engine = client.session, client.session.generate._engine
    rollout = made.rollout()
    (trajectory,) = rollout.trajectories
    assert [each.author.value for each in trajectory.segments] == ["prompt", "model", "tool", "model"]
    for number, request in enumerate(engine.requests):
        assert request.token_ids == trajectory.token_ids[: len(request.token_ids)], number
    check_tokens(made, rollout)
    first, last = client.answers
    assert (first.finish, last.finish) == (Finish.CALLS, Finish.STOP)
    assert (last.content, last.num_prompt_tokens) == ("It is 5.", len(engine.requests[1].token_ids))
    (made_call,) = rollout.tool_calls
    assert (made_call.name, made_call.result, made_call.outcome, made_call.turn) == ("add", "5", Outcome.OK, 0)
    assert made_call.num_tokens == len(trajectory.segments[2])
    assert rollout.stop is Stop.FINISHED
    assert len({request.session for request in engine.requests}) == 1  # the engine reuses its KV
    assert [each.kind for each in rollout.operations] == ["messages", "model_turn", "given", "model_turn"]


def test_an_edited_history_begins_another_conversation():
    async def go():
        client = Client(listed("Hello.", "Again."))
        await client.ask()
        client.messages[-1] = {"role": "assistant", "content": "Something else."}
        await client.ask(user("More?"))
        return client.session

    made = run(go())
    rollout = made.rollout()
    assert [each.num_turns for each in rollout.trajectories] == [1, 1]
    assert "Something else." in TOKENIZER.decode(rollout.trajectories[1].segments[0].token_ids)
    check_tokens(made, rollout)


def test_a_turn_that_nobody_sampled_is_prompt():
    async def go():
        seeded = [user("Context"), {"role": "assistant", "content": "Got it."}, user("What is 2 + 3?")]
        client = Client(listed("5", "Sure."), messages=seeded)
        await client.ask()
        await client.ask(user("Sure?"))
        return client.session.rollout()

    (trajectory,) = run(go()).trajectories
    assert [each.author.value for each in trajectory.segments] == ["prompt", "model", "user", "model"]


def test_a_system_message_that_the_template_refuses_becomes_a_user_message():
    async def go():
        chat = ChatFormat(family_tokenizer("inst"))
        engine = ListEngine("one", "two", tokenizer=chat.tokenizer)
        made = session(engine, chat=chat, sampling=SamplingParams(stop_token_ids=chat.stop_token_ids), format="hermes")
        client = Client(made, [{"role": "system", "content": "Be brief."}, user("What is 2 + 3?")], tools=())
        await client.ask()
        await client.ask({"role": "system", "content": "Time: 12"}, user("More?"))
        return made.rollout()

    (trajectory,) = run(go()).trajectories
    assert trajectory.messages[0] == user("Be brief.\n\nWhat is 2 + 3?")
    assert trajectory.messages[2] == user("Time: 12\n\nMore?")


def test_a_tool_message_for_an_unknown_call_is_kept():
    async def go():
        client = Client(listed(call("add", a=2, b=3), "ok"))
        await client.ask()
        (result,) = client.results("5")
        await client.ask({"role": "tool", "tool_call_id": "of another turn", "content": "late"}, result)
        return client.session.rollout()

    rollout = run(go())
    assert [each.get("tool_call_id") for each in rollout.trajectories[0].messages[2:4]] == [
        "of another turn",
        "c00001000",
    ]
    assert [each.result for each in rollout.tool_calls] == ["5"]


def test_a_repeated_request_is_sampled_again_only_if_its_answer_was_delivered():
    async def go():
        client = Client(listed("one", "two", "three"))
        first = await client.ask(deliver=False)
        assert await client.ask(deliver=False) == first  # a cut stream
        client.session.delivered(first.turn_id)
        assert await client.session.answer(client.request(is_retry=True)) == first
        second = await client.session.answer(client.request())
        client.session.delivered(second.turn_id)
        assert (first.content, second.content) == ("one", "two")
        client.messages.append(echoed(first))
        third = await client.ask(user("More?"))
        assert third.content == "three"
        return client.session

    made = run(go())
    rollout = made.rollout()
    assert len(made.generate._engine.requests) == 3
    by_text = {each.messages[1]["content"]: each for each in rollout.trajectories}
    assert (by_text["one"].num_turns, by_text["two"].num_turns) == (2, 1)
    assert rollout.trajectories[-1] is by_text["one"]
    assert (by_text["one"].weight, by_text["two"].weight) == (1.0, 0.0)
    check_tokens(made, rollout)


def test_the_seeds_of_draws_depend_on_the_context_alone():
    async def go(order):
        engine = ListEngine("a", "b", "c")
        made = session(engine, seed=5)
        for text in order:
            answer = await made.answer(TurnRequest([user(text)]))
            made.delivered(answer.turn_id)
        return {(tuple(each.token_ids), each.sampling.seed) for each in engine.requests}

    one, other = run(go(["x", "y", "x"])), run(go(["y", "x", "x"]))
    assert one == other
    assert len({seed for _, seed in one}) == 3


def test_ids_of_answers_do_not_depend_on_timing():
    async def go(order):
        made = session(ListEngine(call("add", a=1, b=1)), seed=5)
        return {(await made.answer(TurnRequest([user(text)], (ADD,)))).calls[0].call_id for text in order}

    assert run(go(["x", "y"])) == run(go(["y", "x"]))


class Held(ListEngine):
    """An engine that answers when it is told to."""

    def __init__(self, *replies):
        super().__init__(*replies)
        self.gate = asyncio.Event()

    async def generate(self, request):
        answer = asyncio.ensure_future(super().generate(request))
        await self.gate.wait()
        return await answer


def test_equal_requests_in_flight_get_one_answer():
    async def go():
        engine = Held("one", "two")
        made = session(engine)
        client = Client(made)
        both = [asyncio.create_task(made.answer(client.request())) for _ in range(2)]
        await asyncio.sleep(0)
        engine.gate.set()
        one, other = await asyncio.gather(*both)
        return one, other, engine

    one, other, engine = run(go())
    assert one == other
    assert len(engine.requests) == 1


def test_a_client_that_goes_away_does_not_stop_the_turn():
    async def go():
        engine = Held("one", "two")
        client = Client(session(engine))
        gone = asyncio.create_task(client.session.answer(client.request()))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        engine.gate.set()
        answer = await client.session.answer(client.request())
        return answer, engine, client.session

    answer, engine, made = run(go())
    assert answer.content == "one"
    assert len(engine.requests) == 1
    assert made.rollout().trajectories[0].num_turns == 1


def test_side_requests_run_beside_the_conversation():
    async def go():
        engine = Held("A title", call("add", a=2, b=3), "5")
        made = session(engine)
        title = Client(made, [{"role": "system", "content": "Make a title."}, user("What is 2 + 3?")], tools=())
        client = Client(made)
        waiting = asyncio.gather(title.ask(), client.ask())
        await asyncio.sleep(0)
        engine.gate.set()
        await waiting
        await client.ask(*client.results("5"))
        return made

    made = run(go())
    rollout = made.rollout()
    assert [each.num_turns for each in rollout.trajectories] == [1, 2]
    assert [each.weight for each in rollout.trajectories] == [0.0, 1.0]
    check_tokens(made, rollout)
    assert len({request.session for request in made.generate._engine.requests}) == 2


def test_a_sub_agent_is_a_conversation_of_its_own():
    async def go():
        made = listed(call("add", a=1, b=1), call("add", a=2, b=2), "sub: 4", "main: 4")
        main = Client(made, [{"role": "system", "content": "Main."}, user("Delegate.")])
        helper = Client(made, [{"role": "system", "content": "Helper."}, user("2 + 2?")])
        await main.ask()
        await helper.ask()
        await helper.ask(*helper.results("4"))
        await main.ask(*main.results("4"))
        await main.ask(user("Thanks"))
        return made

    made = run(go())
    rollout = made.rollout()
    assert [each.messages[0]["content"] for each in rollout.trajectories] == ["Helper.", "Main."]
    assert [each.num_turns for each in rollout.trajectories] == [2, 3]
    assert [each.weight for each in rollout.trajectories] == [1.0, 1.0]
    assert [(each.trajectory, each.turn) for each in rollout.tool_calls] == [(0, 0), (1, 0)]
    check_tokens(made, rollout)


def test_a_branch_begins_with_a_copy():
    async def go():
        client = Client(listed("zero", "one", "two", "three", "four"))
        await client.ask()
        await client.ask(user("And?"))
        kept = list(client.messages)
        await client.ask(user("Left?"))
        client.messages = kept
        await client.ask(user("Right?"))
        await client.ask(user("More?"))
        return client.session

    made = run(go())
    rollout = made.rollout()
    branch, main = rollout.trajectories
    assert [each.author.value for each in branch.segments] == ["prompt", "user", "model"]
    copy = branch.segments[0].token_ids
    assert copy == main.token_ids[: len(copy)]
    assert branch.messages[:4] == main.messages[:4]
    assert [each.kind for each in rollout.operations[:3]] == ["branch", "given", "model_turn"]
    assert main.num_turns == 4
    assert len({request.session for request in made.generate._engine.requests}) == 2
    check_tokens(made, rollout)


def test_versions_of_the_weights_are_kept_turn_by_turn():
    async def go():
        engine = ListEngine("one", "two")
        client = Client(session(engine))
        await client.ask()
        await engine.load_weights([], 9)
        await client.ask(user("More?"))
        return client.session.rollout()

    assert Counter(run(go()).policy_versions) == {7: 1, 9: 1}


def test_a_request_may_ask_for_less_but_not_for_more():
    async def go(**options):
        engine = ListEngine("one two three")
        client = Client(session(engine, max_turn_tokens=20))
        answer = await client.ask(**options)
        return answer, engine.requests[0].sampling, client.session

    answer, sampling, made = run(go(max_tokens=4))
    assert (answer.finish, answer.num_tokens, sampling.max_new_tokens) == (Finish.LENGTH, 4, 4)
    assert made.stop is None  # the client's own limit
    _, sampling, _ = run(go(max_tokens=400))
    assert sampling.max_new_tokens == 20
    answer, sampling, made = run(go(stop=(" two",)))
    assert (answer.content, sampling.stop) == ("one", (" two",))
    assert made.rollout().trajectories[0].messages[-1]["content"] == "one two"


def test_a_turn_cut_by_the_client_can_be_continued():
    async def go():
        client = Client(listed("one two three", "yes"))
        await client.ask(max_tokens=4)
        await client.ask(user("Go on"))
        return client.session

    made = run(go())
    (trajectory,) = made.rollout().trajectories
    cut, given = trajectory.segments[1:3]
    assert cut.token_ids[-1] != END
    assert given.token_ids[0] == END
    check_tokens(made, made.rollout())


def test_limits_refuse_requests_and_name_their_reason():
    async def turns():
        client = Client(session(ListEngine("one", "two", "three"), max_assistant_turns=2))
        await client.ask()
        await client.ask(user("2"))
        assert not client.session.ended.is_set()
        with pytest.raises(RequestError) as error:
            await client.ask(user("3"))
        return error.value.refusal, client.session.ended.is_set(), client.session.rollout().stop

    assert run(turns()) == (Refusal.ENDED, True, Stop.MAX_ASSISTANT_TURNS)

    async def long():
        client = Client(session(ListEngine("one", "two"), max_response_length=60))
        await client.ask()
        with pytest.raises(RequestError) as error:
            await client.ask(user("long " * 60))
        stop = client.session.rollout().stop
        client.messages.pop()
        await client.ask(user("short"))  # a client may shorten its context and go on
        assert "this model's maximum context length is " in str(error.value)  # the words that LiteLLM knows
        return error.value.refusal, client.session.ended.is_set(), stop, client.session.rollout().stop

    assert run(long()) == (Refusal.TOO_LONG, False, Stop.MAX_RESPONSE_TOKENS, Stop.FINISHED)

    async def prompt():
        client = Client(session(ListEngine("one"), data={"max_prompt_length": 10}))
        with pytest.raises(RequestError) as error:
            await client.ask()
        return error.value.refusal, client.session.rollout()

    refusal, rollout = run(prompt())
    assert (refusal, rollout.stop, rollout.trajectories) == (Refusal.TOO_LONG, Stop.MAX_RESPONSE_TOKENS, [])


def test_a_failed_turn_ends_the_session_and_is_not_recorded():
    class Failing(ListEngine):
        async def generate(self, request):
            raise RuntimeError("down")

    async def go():
        client = Client(session(Failing("one")))
        with pytest.raises(RequestError, match="down") as error:
            await client.ask()
        return error.value.refusal, client.session

    refusal, made = run(go())
    assert refusal is Refusal.FAILED
    assert isinstance(made.failure, RuntimeError)
    assert made.ended.is_set()
    assert made.rollout().trajectories == []


def test_closing_ends_what_is_being_sampled():
    async def go():
        client = Client(session(Held("one")))
        waiting = asyncio.create_task(client.session.answer(client.request()))
        await asyncio.sleep(0)
        await client.session.close()
        with pytest.raises(RequestError) as error:
            await waiting
        with pytest.raises(RequestError):
            await client.ask(user("More?"))
        return error.value.refusal, client.session.rollout()

    refusal, rollout = run(go())
    assert refusal is Refusal.ENDED
    assert rollout.trajectories == []


def test_tokens_are_counted_without_sampling():
    async def go():
        client = Client(listed("one", "two"))
        first = client.session.count_tokens(client.request())
        one = await client.ask()
        client.messages.append(user("More?"))
        second = client.session.count_tokens(client.request())
        two = await client.ask()
        return (first, second), (one.num_prompt_tokens, two.num_prompt_tokens)

    counted, sampled = run(go())
    assert counted == sampled


MALFORMED = {
    "truncated": '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b"\n</tool_call>',
    "no arguments": '<tool_call>\n{"name": "add"}\n</tool_call>',
    "empty": "<tool_call>\n</tool_call>",
    "no name": '<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>',
    "unknown tool": call("subtract", a=1),
    "a list as arguments": '<tool_call>\n{"name": "add", "arguments": [1, 2]}\n</tool_call>',
    "no end": '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}',
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_rewritten_malformed_call_is_recognised_by_its_id(text):
    async def go():
        client = Client(listed(text, "sorry"))
        answer = await client.ask()
        if answer.calls:  # a harness repairs what it cannot read
            client.messages[-1]["tool_calls"][0]["function"] = {"name": "invalid", "arguments": '{"error":"bad"}'}
        await client.ask(*(client.results("Error: bad call") if answer.calls else [user("Call a tool.")]))
        return client

    client = run(go())
    rollout = client.session.rollout()
    (trajectory,) = rollout.trajectories
    assert trajectory.num_turns == 2
    check_tokens(client.session, rollout)
    for made, answer in zip(rollout.tool_calls, client.answers[0].calls, strict=True):
        assert made.arguments == answer.arguments
        wrong = bool(answer.error) or made.name != "add"
        assert (made.outcome, made.result) == (
            Outcome.FORMAT_ERROR if wrong else Outcome.OK,
            "Error: bad call",
        )


def test_an_ignored_parameter_is_noted_once(caplog, monkeypatch):
    monkeypatch.setattr("agentrl.gateway.session._NOTED", set())

    async def go():
        client = Client(listed("one", "two"))
        await client.ask(ignored=("temperature",))
        await client.ask(user("More?"), ignored=("temperature", "seed"))

    run(go())
    assert [record.getMessage().split("'")[1] for record in caplog.records] == ["temperature", "seed"]


def test_operations_name_the_parent_of_a_branch():
    async def go():
        client = Client(listed("one", "two", "three"))
        await client.ask()
        for text in ("Left?", "Right?"):
            del client.messages[2:]
            await client.ask(user(text))
        return client.session.rollout()

    branch = next(each for each in run(go()).operations if each.kind is OperationKind.BRANCH)
    assert '"parent": 1' in branch.detail
    assert branch.trajectory == 0
