"""Further trajectories (`thinking=strip`): every context is what the template renders for the messages before it."""

from __future__ import annotations

import asyncio

import pytest
from chat_families import THINKING, family_tokenizer, tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from loop_builders import TASK, ListEngine, add, call, config, runner
from public_templates import NAMES as PUBLIC
from public_templates import template_text

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.agent_loops.resume import ResumePoint
from agentrl.algos.credit import samples_of
from agentrl.chat.format import ChatFormat
from agentrl.chat.history import with_thoughts
from agentrl.config.run import RunConfig
from agentrl.engines.base import SamplingParams
from agentrl.errors import TemplateError
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.replayed import RecordedAnswers
from agentrl.tools.toolbox import Toolbox
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.trajectory import Author

CHAT = ChatFormat(family_tokenizer("thinking"))
TOOLS = Toolbox([add], RunConfig.model_validate({"model": {"path": "none"}}).rollout.multi_turn).schemas


class User(BaseInteraction):
    """Asks as many questions as it has."""

    def __init__(self, *questions: str) -> None:
        super().__init__({})
        self.questions = questions

    async def generate_response(self, instance_id, messages, **kwargs):
        asked = sum(message["role"] == "user" for message in messages)
        return asked > len(self.questions), (*self.questions, "Bye")[min(asked, len(self.questions) + 1) - 1], 0.5, {}


def strip(
    *replies: str,
    questions=(),
    thinking="strip",
    chat=CHAT,
    loop="tool_agent",
    tools=(add,),
    resume_point=None,
    answers=None,
    **multi_turn,
):
    engine = ListEngine(*replies, tokenizer=chat.tokenizer)
    users = {"interactions": {"user": User(*questions)}} if questions else {}
    settings = config(loop, thinking=thinking, format="hermes", **multi_turn)
    made = runner(engine, settings, tools, chat=chat, **users)
    running = made.run(TASK, SamplingParams(), seed=0, resume_point=resume_point, answers=answers)
    return asyncio.run(running), engine


def thought(text: str, answer: str) -> str:
    return f"<think>\n{text}\n</think>\n\n{answer}"


USES_TOOL = thought("I add", "So:\n" + call("add", a=2, b=3))


def reference(messages, chat=CHAT) -> list[int]:
    """transformers' own rendering of messages, whose thoughts this template reads in the content."""
    tools = [schema.for_template() for schema in TOOLS]
    messages = with_thoughts(messages, chat.template)
    return chat.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)


def contexts(rollout: Rollout) -> list[tuple[list[int], int]]:
    """(tokens before a model turn, number of messages before it) of every turn, trajectory by trajectory."""
    found = []
    for trajectory in rollout.trajectories:
        turns = [place for place, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
        start, own = 0, turns[len(turns) - trajectory.num_turns :] if trajectory.num_turns else []
        places = iter(own)
        for segment in trajectory.segments:
            if segment.author is Author.MODEL:
                found.append((list(trajectory.token_ids[:start]), next(places)))
            start += len(segment)
    return found


def text_of(rollout: Rollout) -> list[str]:
    return [CHAT.tokenizer.decode(trajectory.token_ids) for trajectory in rollout.trajectories]


def test_a_tool_loop_without_a_new_question_stays_one_trajectory_with_the_tokens_of_keep():
    replies = (USES_TOOL, thought("5", "It is 5"))
    (stripped, _), (kept, _) = strip(*replies), strip(*replies, thinking="keep")
    assert len(stripped.trajectories) == 1
    assert stripped.trajectories[0].token_ids == kept.trajectories[0].token_ids
    assert [each.author for each in stripped.trajectories[0].segments] == ["prompt", "model", "tool", "model"]
    assert [each.num_tokens for each in stripped.tool_calls] == [each.num_tokens for each in kept.tool_calls]


def test_a_new_question_begins_a_further_trajectory_without_the_thoughts():
    rollout, engine = strip(USES_TOOL, thought("5", "It is 5"), thought("6", "It is 6"), questions=["And then?"])
    first, second = rollout.trajectories
    assert "I add" in CHAT.tokenizer.decode(first.token_ids)
    assert [each.author for each in second.segments] == ["prompt", "model"]
    assert second.segments[0].token_ids == reference(second.messages[:-1])
    assert "And then?" in text_of(rollout)[1]
    assert not any(thoughts in text_of(rollout)[1] for thoughts in ("I add", "\n5\n</think>"))
    assert [list(request.token_ids) for request in engine.requests] == [ids for ids, _ in contexts(rollout)]
    assert second.messages[: len(first.messages)] == first.messages
    assert [each.trajectory for each in rollout.turn_rewards] == [0, 1]
    assert [each.segment for each in rollout.turn_rewards] == [3, 1]


def test_every_estimator_gets_one_rollout_whose_tokens_are_trained_once():
    rollout, _ = strip(USES_TOOL, thought("5", "It is 5"), thought("6", "It is 6"), questions=["And then?"])
    rollout.rewards["score"] = 1.0
    samples = samples_of([Group(TASK, [rollout, rollout])])
    assert len({sample.rollout_id for sample in samples}) == 2
    assert len(samples) == 4
    trained = sum(sum(sample.loss_mask) for sample in samples[:2])
    assert trained == sum(len(segment) for one in rollout.trajectories for segment in one.segments if segment.logprobs)


def test_operations_say_which_trajectory_continues_which():
    rollout, _ = strip(USES_TOOL, thought("5", "5"), thought("6", "6"), questions=["And then?"])
    kinds = [(each.kind.value, each.trajectory, each.num_messages, each.num_calls) for each in rollout.operations]
    assert kinds == [
        ("task", 0, 1, 0),
        ("model_turn", 0, 1, 0),
        ("tool_turn", 0, 1, 1),
        ("model_turn", 0, 1, 0),
        ("user_turn", 0, 0, 0),
        ("render", 1, 5, 0),
        ("model_turn", 1, 1, 0),
        ("user_turn", 1, 0, 0),
    ]
    (opening,) = (each for each in rollout.operations if each.kind is OperationKind.RENDER)
    assert '"parent": 0' in opening.detail


def test_calls_written_in_another_form_begin_a_further_trajectory():
    written = thought("I add", 'So:\n<tool_call>{"name":"add","arguments":{"a":2,"b":3}}</tool_call>')
    rollout, _ = strip(written, thought("5", "It is 5"))
    assert len(rollout.trajectories) == 2
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>' in text_of(rollout)[1]
    (made,) = rollout.tool_calls
    assert (made.trajectory, made.turn, made.result) == (0, 0, "5")
    assert made.num_tokens > 0


def test_limits_count_the_context_for_tokens_and_the_conversation_for_turns():
    long = thought("word " * 30, "It is 5")
    rollout, _ = strip(*[long] * 4, questions=["And?"] * 9, max_response_length=150)
    kept, _ = strip(*[long] * 4, questions=["And?"] * 9, max_response_length=150, thinking="keep")
    assert (kept.stop, len(contexts(kept))) == (Stop.MAX_RESPONSE_TOKENS, 2)  # the second turn is cut
    assert len(contexts(rollout)) > 2
    prompt = len(rollout.trajectories[0].segments[0])
    assert all(len(each.token_ids) <= prompt + 150 for each in rollout.trajectories)
    rollout, _ = strip(*[thought("a", "b")] * 4, questions=["And?"] * 9, max_assistant_turns=3)
    assert (rollout.stop, len(contexts(rollout))) == (Stop.MAX_ASSISTANT_TURNS, 3)
    calls = [thought("a", f"So:\n{call('add', a=1, b=1)}"), thought("b", "c")] * 2
    rollout, _ = strip(*calls, questions=["And?"], max_tool_calls=1)
    assert [each.outcome.value for each in rollout.tool_calls] == ["ok", "limit_error"]


def test_a_template_that_refuses_a_malformed_call_continues_as_with_keep():
    refusing = THINKING.replace(
        "{{- call.function.arguments | tojson }}",
        "{%- if call.function.arguments is string %}{{- raise_exception('no object') }}{% endif %}"
        "{{- call.function.arguments | tojson }}",
    )
    chat = ChatFormat(tokenizer_for(refusing))
    replies = (thought("a", "<tool_call>{bad</tool_call>"), thought("b", "c"), thought("d", "e"))
    (rollout, _), (kept, _) = (strip(*replies, questions=["And?"], chat=chat, thinking=t) for t in ("strip", "keep"))
    assert [each.token_ids for each in rollout.trajectories] == [each.token_ids for each in kept.trajectories]


class Saying(AgentLoop):
    """Says something twice before the first turn, and after a turn, and asks the user then."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        chat.say("One.")
        chat.say("Two.")
        await chat.model_turn()
        chat.say("Three.")
        await chat.user_turn()
        await chat.model_turn()
        return chat.rollout()


def test_a_loop_may_say_anything_anywhere(monkeypatch):
    monkeypatch.setattr(agent_loops, "_objects", {**agent_loops._objects, "saying": Saying})
    rollout, engine = strip(thought("a", "b"), thought("c", "d"), loop="saying", questions=["And?"] * 9)
    assert [request.token_ids for request in engine.requests] == [ids for ids, _ in contexts(rollout)]
    assert [(each.trajectory, each.segment) for each in rollout.turn_rewards] == [(2, 1)]
    for ids, place in contexts(rollout):
        assert ids == reference(rollout.trajectories[-1].messages[:place])


SPELLED = ["<think>", "</think>", "<|im_end|>", "<tool_call>", "</tool_response>"]
contents = st.lists(st.sampled_from(["a", " b", "\n", '"', "é", *SPELLED]), max_size=6).map("".join)
replies = st.lists(
    st.one_of(
        st.builds(thought, contents, contents),
        st.builds(lambda text, a: thought(text, "So:\n" + call("add", a=a, b=1)), contents, st.integers(-9, 9)),
        contents,
        st.builds(lambda text: call(text, **{text: text}), contents),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@given(replies=replies, question=contents)
def test_the_engine_is_asked_with_what_the_template_renders(replies, question):
    """Also for text that spells control tokens: the rendered text, in which such text is ordinary characters."""
    rollout, engine = strip(*replies, questions=[question] * 9, max_assistant_turns=len(replies), max_parallel_calls=3)
    assert [request.token_ids for request in engine.requests] == [ids for ids, _ in contexts(rollout)]
    tools = [schema.for_template() for schema in TOOLS]
    for ids, place in contexts(rollout):
        messages = with_thoughts(rollout.trajectories[-1].messages[:place], CHAT.template)
        text = CHAT.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        assert CHAT.tokenizer.decode(ids) == text
        controls = [ids.count(token) for token in CHAT.template.control_tokens.values()]
        plain = [{**each, "content": "x"} for each in messages]
        expected = reference([messages[0], *plain[1:]])
        if not any(each.get("tool_calls") for each in messages):
            assert controls == [expected.count(token) for token in CHAT.template.control_tokens.values()]


def test_readers_of_messages_see_one_conversation():
    rollout, _ = strip(USES_TOOL, thought("5", "It is 5"), thought("6", "It is 6"), questions=["And then?"])
    assert rollout.dialogues == [rollout.trajectories[1].messages]
    assert rollout.following(0) == rollout.trajectories[1].messages[4:]
    assert rollout.following(1) == ()


def test_recorded_answers_of_the_user_are_found_in_the_next_trajectory():
    replies = (thought("a", "b"), thought("c", "d"), thought("e", "f"))
    rollout, _ = strip(*replies, questions=["And?", "So?"])
    answers = RecordedAnswers(rollout)
    messages = rollout.trajectories[-1].messages
    found = [answers.find(messages[:end]) for end in (2, 4, 6)]
    assert [(each.done, each.text) for each in found] == [(False, "And?"), (False, "So?"), (True, "")]


@pytest.mark.parametrize(("turn", "known"), [(0, True), (1, True), (2, False), (9, False)])
def test_a_rollout_continues_from_a_turn_of_its_first_trajectory(turn, known):
    replies = (USES_TOOL, thought("5", "It is 5"), thought("6", "It is 6"))
    saved, engine = strip(*replies, questions=["And then?"])
    point = ResumePoint.of(saved, turn)
    assert (point is not None) == known
    if point is not None:
        again, other = strip(*replies[turn:], questions=["And then?"], resume_point=point)
        assert [each.token_ids for each in again.trajectories] == [each.token_ids for each in saved.trajectories]
        assert [each.token_ids for each in other.requests] == [each.token_ids for each in engine.requests[turn:]]


@given(replies=replies, question=contents)
def test_replayed_rollouts_have_the_same_tokens(replies, question):
    options = {"max_assistant_turns": len(replies), "max_parallel_calls": 3}
    saved, engine = strip(*replies, questions=[question] * 9, **options)
    again, other = strip(*replies, questions=["Never asked"], answers=RecordedAnswers(saved, []), **options)
    assert [each.token_ids for each in again.trajectories] == [each.token_ids for each in saved.trajectories]
    assert [each.token_ids for each in other.requests] == [each.token_ids for each in engine.requests]
    assert again.operations == saved.operations


@pytest.mark.slow
def test_contexts_of_public_templates_are_their_own_rendering():
    """Questions of a user, with thoughts: the engine is asked with what transformers renders."""
    num_further = 0
    for name in PUBLIC:
        chat = ChatFormat(tokenizer_for(template_text(name)))
        try:
            chat.check((), ("user",))
        except TemplateError:  # refused before a run
            continue
        written = [thought(*each).removeprefix(chat.opened) for each in ("ab", "cd", "ef")]
        rollout, engine = strip(*written, questions="12", chat=chat, tools=())
        assert [request.token_ids for request in engine.requests] == [ids for ids, _ in contexts(rollout)], name
        for ids, place in contexts(rollout):
            messages = with_thoughts(rollout.trajectories[-1].messages[:place], chat.template)
            expected = chat.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            assert ids == expected, name
        num_further += len(rollout.trajectories) - 1
    assert num_further or not PUBLIC
