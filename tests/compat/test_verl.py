"""Agent loops written for verl, run by our rollout runner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import verl_loops
from loop_builders import CHAT, END, TASK, ListEngine, call, config, ids, roll, texts

from agentrl.agent_loops import agent_loops
from agentrl.compat.verl import AgentLoopBase, AgentLoopOutput
from agentrl.compat.verl.server import sampling_of
from agentrl.engines.base import SamplingParams
from agentrl.errors import ConfigError
from agentrl.types.rollout import Stop
from agentrl.types.trajectory import Author, VersionSpan

LOOPS = Path(verl_loops.__file__)


def test_a_single_turn_loop_yields_the_engines_own_segment():
    rollout = roll(ListEngine("5"), config("verl_single_turn"))
    assert rollout.error is None
    prompt, answer = rollout.trajectories[0].segments
    assert (prompt.author, answer.author) == (Author.PROMPT, Author.MODEL)
    assert list(prompt.token_ids) == CHAT.start(TASK.messages, ())
    assert list(answer.token_ids) == [*ids("5"), END]
    assert answer.logprobs == [-0.5, -1.5]
    assert list(answer.policy_versions) == [VersionSpan(7, 2)]
    assert rollout.stop is Stop.FINISHED
    assert rollout.rewards["score"] == 1.0  # from our reward: the loop gave none


def test_audit_truncates_long_answers_like_the_loop():
    rollout = roll(ListEngine("one two three four five"), config("verl_single_turn", max_response_length=3))
    assert [len(segment) for segment in rollout.trajectories[0].segments[1:]] == [3]
    assert rollout.stop is Stop.MAX_RESPONSE_TOKENS


def two_turns(tmp_path, *replies, options=""):
    listing = tmp_path / "loops.yaml"
    listing.write_text(f"- name: sum_loop\n  _target_: {LOOPS}:SumLoop\n{options}")
    engine = ListEngine(*replies)
    return engine, roll(engine, config("sum_loop", agent={"agent_loop_config_path": str(listing)}))


def test_verl_loop_runs_two_turns_with_tool_text_between(tmp_path):
    engine, rollout = two_turns(tmp_path, call("add", a=2, b=3), "5", options="  bonus: 0.25\n")
    assert rollout.error is None
    tool_text = "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert texts(rollout)[1:] == [
        ("model", call("add", a=2, b=3) + "<|im_end|>"),
        ("tool", tool_text),
        ("model", "5<|im_end|>"),
    ]
    assert [segment.logprobs for segment in rollout.trajectories[0].segments[3:]] == [[-0.5, -1.5]]
    assert [message["role"] for message in rollout.trajectories[0].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert rollout.rewards == {"score": 1.25, "acc": 1.0}  # the loop's own score
    assert len({request.session for request in engine.requests}) == 1
    assert len({request.sampling.seed for request in engine.requests}) == 2


class Claiming(AgentLoopBase):
    """Returns the fields that `claim` makes from the sampled tokens."""

    claim = staticmethod(lambda prompt, sampled: None)

    async def run(self, sampling_params, **kwargs):
        prompt_ids = await self.apply_chat_template(kwargs["raw_prompt"])
        sampled = (await self.server_manager.generate("r", prompt_ids=prompt_ids, sampling_params={})).token_ids
        return self.claim(prompt_ids, sampled)


def output(prompt, response, mask) -> AgentLoopOutput:
    return AgentLoopOutput(prompt_ids=prompt, response_ids=response, response_mask=mask)


def claimed(monkeypatch, claim):
    monkeypatch.setattr(Claiming, "claim", staticmethod(claim))
    monkeypatch.setitem(agent_loops._objects, "claiming", Claiming)
    return roll(ListEngine("5"), config("claiming"))


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        (lambda p, s: output(p, [*ids("6"), END], [1, 1]), "the engine did not sample"),
        (lambda p, s: output(p, [*s, END], [1, 1, 1]), "the engine did not sample"),
        (lambda p, s: output([*p, END], s, [1, 1]), "a different context"),
        (lambda p, s: [output(p, s, [1, 1]), output(p, s, [1, 1])], "are already in another trained segment"),
        (lambda p, s: output(p, s, [1]), "response_mask must hold"),
        (lambda p, s: output(p, s, [1, 2]), "response_mask must hold"),
        (lambda p, s: None, "must return an AgentLoopOutput"),
    ],
)
def test_an_answer_that_was_not_sampled_is_refused(monkeypatch, claim, problem):
    rollout = claimed(monkeypatch, claim)
    assert rollout.stop is Stop.ERROR
    assert problem in rollout.error
    assert not rollout.valid


def test_several_outputs_are_several_trajectories_and_the_last_score_counts(monkeypatch):
    def claim(prompt, sampled):
        first = output(prompt, sampled, [1, 1]).model_copy(update={"reward_score": 0.5})
        copied = output([*prompt, *sampled], ids("x"), [0]).model_copy(update={"reward_score": 0.75})
        return [first, copied]

    rollout = claimed(monkeypatch, claim)
    assert [trajectory.num_trained_tokens for trajectory in rollout.trajectories] == [2, 0]
    assert rollout.reward == 0.75


def test_an_empty_mask_is_an_empty_response(monkeypatch):
    """verl's tool agent then returns `prompt_ids[-0:]`, the complete prompt, as the response."""
    rollout = claimed(monkeypatch, lambda prompt, sampled: output(prompt, prompt, []))
    assert rollout.error is None
    assert [segment.author for segment in rollout.trajectories[0].segments] == [Author.PROMPT]
    assert not rollout.valid


def test_a_row_arrives_under_verls_names(monkeypatch):
    class Looking(AgentLoopBase):
        async def run(self, sampling_params, **kwargs):
            raise ValueError(f"{sampling_params['temperature']} {sorted(kwargs)} {kwargs['extra_info']}")

    monkeypatch.setitem(agent_loops._objects, "looking", Looking)
    task = replace(TASK, extra_info={"level": 3}, tools_kwargs={"add": {"create_kwargs": {"x": 1}}})
    rollout = roll(ListEngine(), config("looking"), task, sampling=SamplingParams(temperature=0.5))
    names = ["agent_name", "data_source", "extra_info", "index", "interaction_kwargs", "level", "raw_prompt"]
    names += ["reward_model", "tools_kwargs", "uid"]
    assert f"0.5 {names}" in rollout.error
    assert "'level': 3" in rollout.error
    assert rollout.error.endswith(f"({__file__}:{Looking.run.__code__.co_firstlineno + 1})")


def test_verl_sampling_parameters_are_mapped():
    base = SamplingParams(max_new_tokens=10, stop_token_ids=(END,))
    mapped = sampling_of(
        {"temperature": 0.5, "max_tokens": 5, "stop": "x", "stop_token_ids": [1], "repetition_penalty": 1.0}, base
    )
    assert mapped == SamplingParams(temperature=0.5, max_new_tokens=5, stop=("x",), stop_token_ids=(END, 1))
    assert sampling_of({"max_tokens": 99, "logprobs": True, "top_k": None}, base) == base
    with pytest.raises(ConfigError, match="repetition_penalty"):
        sampling_of({"repetition_penalty": 1.1}, base)
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        sampling_of({"temprature": 0.5}, base)


def test_images_are_refused(monkeypatch):
    class Seeing(AgentLoopBase):
        async def run(self, sampling_params, **kwargs):
            await self.server_manager.generate("r", prompt_ids=[1], sampling_params={}, image_data=["x"])

    monkeypatch.setitem(agent_loops._objects, "seeing", Seeing)
    with pytest.raises(ConfigError, match="image_data"):
        roll(ListEngine(), config("seeing"))
