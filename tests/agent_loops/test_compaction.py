"""Agent loop `compaction`: when it asks for a summary, what follows, and summaries that are none."""

from __future__ import annotations

import copy

import pytest
from loop_builders import CHAT, TASK, ListEngine, add, call, config, exact, ids, roll

from agentrl.agent_loops.compaction import SUMMARY, CompactionAgent
from agentrl.chat.format import ChatFormat
from agentrl.errors import TemplateError
from agentrl.interactions.base import BaseInteraction
from agentrl.rollouts.metrics import rollout_metrics
from agentrl.tools.function import as_tool
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Group, Outcome, Stop
from agentrl.types.trajectory import Author

ASK = "Summarise."
ADD = call("add", a=2, b=3)


def compacting(*replies, share=0.05, most=4, instruction=ASK, task=TASK, **limits):
    engine = ListEngine(*replies)
    section = {"share": share, "max_compactions": most, "instruction": instruction}
    return engine, roll(engine, config("compaction", compaction=section, **limits), task)


def shown(trajectory):
    return CHAT.text(trajectory.token_ids)


def test_a_summary_replaces_the_conversation_and_is_trained():
    _, rollout = compacting(ADD, "2 + 3 is 5", "5")
    first, second = rollout.trajectories
    assert [each.author for each in first.segments] == [Author.PROMPT, Author.MODEL, Author.TOOL, Author.MODEL]
    assert first.messages[-2:] == [{"role": "user", "content": ASK}, {"role": "assistant", "content": "2 + 3 is 5"}]
    assert CHAT.text(first.segments[2].token_ids).count("<|im_start|>") == 3  # answer, request, generation prompt
    prompt = [{"role": "user", "content": f"What is 2 + 3?{SUMMARY}2 + 3 is 5"}]
    assert second.messages == [*prompt, {"role": "assistant", "content": "5"}]
    assert list(second.segments[0].token_ids) == CHAT.start(prompt, [as_tool(add).schema])
    assert (rollout.stop, rollout.reward) == (Stop.FINISHED, 1.0)
    sampled = [token for reply in (ADD, "2 + 3 is 5", "5") for token in ids(reply)]
    trained = [t for each in rollout.trajectories for t, m in zip(each.token_ids, each.loss_mask, strict=True) if m]
    assert [token for token in trained if token not in CHAT.stop_token_ids] == sampled


def test_the_share_decides_when():
    """The response may have 500 tokens. 'With these answers' counts, so the request comes with the answer."""
    _, whole = compacting(ADD, ADD, "5", share=0.99)
    (trajectory,) = whole.trajectories
    used = sum(map(len, trajectory.segments[1:3])) / 500
    assert len(compacting(ADD, "5", share=used + 0.001)[1].trajectories) == 1
    assert len(compacting(ADD, "so", "5", share=used)[1].trajectories) == 2


def test_the_number_of_summaries_is_limited():
    _, rollout = compacting(ADD, "one", ADD, "two", ADD, ADD, "5", most=2)
    assert len(rollout.trajectories) == 3
    assert [each.kind for each in rollout.operations].count(OperationKind.RESTART) == 2
    assert rollout.trajectories[2].messages[0]["content"] == f"What is 2 + 3?{SUMMARY}two"


@pytest.mark.parametrize(
    ("summary", "stop", "outcomes"),
    [
        ("  ", Stop.NO_SUMMARY, [Outcome.OK]),
        (ADD, Stop.NO_SUMMARY, [Outcome.OK, Outcome.LIMIT_ERROR]),
        ("Still to do: " + ADD, Stop.NO_SUMMARY, [Outcome.OK, Outcome.LIMIT_ERROR]),
        ("word " * 60, Stop.MAX_TURN_TOKENS, [Outcome.OK]),
    ],
    ids=["empty", "a call", "a call in a text", "cut"],
)
def test_a_turn_that_is_no_summary_ends_the_rollout(summary, stop, outcomes):
    engine, rollout = compacting(ADD, summary, "5", max_turn_tokens=50)
    assert (rollout.stop, len(rollout.trajectories), len(engine.requests)) == (stop, 1, 2)
    assert [each.outcome for each in rollout.tool_calls] == outcomes
    assert rollout.reward == 0.0


def test_limits_of_turns_and_calls_count_over_the_rollout():
    _, rollout = compacting(ADD, "so", ADD, "so", "5", max_tool_calls=1)
    assert [each.outcome for each in rollout.tool_calls] == [Outcome.OK, Outcome.LIMIT_ERROR]
    assert [each.turn for each in rollout.tool_calls] == [0, 2]
    assert compacting(ADD, "so", ADD, max_assistant_turns=3)[1].stop is Stop.MAX_ASSISTANT_TURNS


def test_text_of_a_summary_never_becomes_a_control_token():
    engine, rollout = compacting(ADD, "a <|im_start|>assistant", "5")
    assert "<\\|im_start|>" in shown(rollout.trajectories[1])
    assert engine.requests[2].token_ids.count(ids("<|im_start|>")[0]) == 3  # system, user, generation prompt


def test_task_and_summary_leave_less_room_for_the_response():
    """Prompt and response together never have more tokens than the context."""
    engine = ListEngine(ADD, "word " * 150, "and " * 500)
    run_config = config("compaction", compaction={"share": 0.05, "instruction": ASK})
    num_prompt = len(CHAT.start(TASK.messages, [as_tool(add).schema]))
    data = run_config.data.model_copy(update={"max_prompt_length": num_prompt})
    rollout = roll(engine, run_config.model_copy(update={"data": data}))
    first, second = rollout.trajectories
    assert rollout.stop is Stop.MAX_RESPONSE_TOKENS
    assert len(second.token_ids) == num_prompt + 500
    assert second.num_response_tokens < 500
    assert len(first.token_ids) < num_prompt + 500


STRICT = """{%- for m in messages %}
{%- if not loop.first and m.role == "user" and messages[loop.index0 - 1].role != "assistant" %}
{{- raise_exception("a user message must follow an assistant's") }}{%- endif %}
{{- "<|im_start|>" + m.role + "\n" + (m.content or "") }}
{%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{{- "<|im_end|>\n" }}{%- endfor %}{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{% endif %}"""


def loop_with(template: str | None = None) -> CompactionAgent:
    tokenizer = copy.deepcopy(CHAT.tokenizer)
    tokenizer.chat_template = template or tokenizer.chat_template
    return CompactionAgent(ChatFormat(tokenizer), None, config("compaction"))


def test_a_template_that_refuses_the_request_is_refused_at_the_start():
    schemas = [as_tool(add).schema]
    loop_with().check_template(schemas, with_users=True)
    loop_with(STRICT).check_template([], with_users=False)
    with pytest.raises(TemplateError, match=r"after an answer of a tool.*must follow an assistant's"):
        loop_with(STRICT).check_template(schemas, with_users=False)
    with pytest.raises(TemplateError, match="after an answer of a user"):
        loop_with(STRICT).check_template([], with_users=True)


class User(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        return len(messages) > 4, "And now?", 0.5, {}


def test_a_simulated_user_continues_after_the_summary():
    engine = ListEngine("4", "said 4", "5", "said 5", "6")
    section = {"share": 0.01, "max_compactions": 1, "instruction": ASK}
    run_config = config("compaction", compaction=section)
    task = TASK.__class__(TASK.messages, "5", "sums", uid="t0", interaction_kwargs={"name": "user"})
    rollout = roll(engine, run_config, task, interactions={"user": User({})}, reward=exact)
    first, second = rollout.trajectories
    assert [each["role"] for each in first.messages] == ["user", "assistant", "user", "user", "assistant"]
    assert (rollout.turn_rewards[0].trajectory, rollout.turn_rewards[0].segment) == (0, 1)
    assert {each.trajectory for each in rollout.turn_rewards} == {0, 1}
    assert "said 4" in shown(second)


def test_metrics():
    _, rollout = compacting(ADD, "so", ADD, "more", "5")
    metrics = rollout_metrics([Group(TASK, [rollout])])
    lengths = [len(each.token_ids) for each in rollout.trajectories]
    prompts = [len(each.segments[0]) for each in rollout.trajectories]
    assert metrics["compaction/mean"] == 2
    assert metrics["compaction/tokens_before"] == sum(lengths[:2]) / 2
    assert metrics["compaction/tokens_after"] == sum(prompts[1:]) / 2
