"""User-written loops: with one conversation, with several, and with none."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from loop_builders import CHAT, END, ListEngine, call, config, ids, roll

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.agent_loops.base import model_segment
from agentrl.engines.base import Completion, FinishReason, SamplingParams
from agentrl.types.rollout import Outcome, Rollout, Stop
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


@pytest.fixture
def run(monkeypatch):
    """run(loop_class, *replies) -> (engine, rollout)."""

    def run(loop_class, *replies, **limits):
        monkeypatch.setitem(agent_loops._objects, "own", loop_class)
        engine = ListEngine(*replies)
        return engine, roll(engine, config("own", **limits))

    return run


class Twice(AgentLoop):
    """Samples a second answer, regardless of the first one."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        if await chat.model_turn() and chat.say("Are you sure?"):
            await chat.model_turn()
        return chat.rollout()


def test_loop_of_ten_lines_works(run):
    _, rollout = run(Twice, "4", "5")
    authors = [segment.author for segment in rollout.trajectories[0].segments]
    assert authors == [Author.PROMPT, Author.MODEL, Author.USER, Author.MODEL]
    assert (rollout.stop, rollout.reward) == (Stop.FINISHED, 1.0)


def test_turn_limit_applies_to_messages_of_the_loop(run):
    _, rollout = run(Twice, "4", "5", max_assistant_turns=1)
    assert (rollout.stop, len(rollout.trajectories[0].segments)) == (Stop.MAX_ASSISTANT_TURNS, 2)


class Raw(AgentLoop):
    """Builds its rollout itself."""

    async def run(self, task, generate, tools, interaction, sampling):
        trajectory = Trajectory([Segment(Author.PROMPT, self.chat.start(task.messages, ()))])
        trajectory.append(model_segment(await generate(trajectory.token_ids, sampling), sampling))
        return Rollout([trajectory], Stop.FINISHED)


def test_loop_may_build_a_rollout_without_a_conversation(run):
    engine, rollout = run(Raw, "5")
    assert (rollout.error, rollout.reward) == (None, 1.0)
    assert engine.requests[0].sampling.stop_token_ids == (END,)
    assert engine.requests[0].sampling.max_new_tokens == 500


class Compacting(AgentLoop):
    """Calls a tool, writes a summary, and continues from the summary alone."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.tool_turn(await chat.model_turn())
        chat = chat.restart([*task.messages, {"role": "user", "content": chat.tool_calls[0].result}])
        await chat.model_turn()
        return chat.rollout()


def test_a_rewritten_history_is_a_second_trajectory(run):
    engine, rollout = run(Compacting, call("add", a=2, b=3), "5")
    first, second = rollout.trajectories
    assert [segment.author for segment in first.segments] == [Author.PROMPT, Author.MODEL, Author.TOOL]
    assert [segment.author for segment in second.segments] == [Author.PROMPT, Author.MODEL]
    assert list(second.token_ids) == [*engine.requests[1].token_ids, *ids("5"), END]
    assert len({request.session for request in engine.requests}) == 2
    assert engine.released == [request.session for request in engine.requests]
    assert rollout.reward == 1.0


def test_turns_before_a_restart_count_towards_the_limits(run):
    _, rollout = run(Compacting, call("add", a=2, b=3), "5", max_assistant_turns=1)
    assert rollout.stop is Stop.MAX_ASSISTANT_TURNS
    assert [each.outcome for each in rollout.tool_calls] == [Outcome.LIMIT_ERROR]


class Delegating(AgentLoop):
    """Two sub-agents side by side, then an answer."""

    async def run(self, task, generate, tools, interaction, sampling):
        main = self.open(task, generate, tools, interaction, sampling)
        helpers = [
            self.open(task, generate, None, None, sampling, messages=[{"role": "user", "content": question}])
            for question in ("2?", "3?")
        ]
        await asyncio.gather(*(helper.model_turn() for helper in helpers))
        main.say(" ".join(str(helper.trajectory.messages[-1]["content"]) for helper in helpers))
        await main.model_turn()
        return main.rollout()


def test_sub_agents_have_trajectories_sessions_and_seeds_of_their_own(run):
    engine, rollout = run(Delegating, "two", "three", "5")
    assert [trajectory.num_turns for trajectory in rollout.trajectories] == [1, 1, 1]
    assert "two three" in CHAT.text(rollout.trajectories[0].token_ids)
    assert len({request.session for request in engine.requests}) == 3
    assert len({request.sampling.seed for request in engine.requests}) == 3
    assert rollout.error is None


def answering(make):
    """A loop whose rollout is built by `make(prompt ids, completion, sampling)`."""

    class Answering(AgentLoop):
        async def run(self, task, generate, tools, interaction, sampling):
            prompt = self.chat.start(task.messages, ())
            return make(prompt, await generate(prompt, sampling), sampling)

    return Answering


def of(*segments) -> Rollout:
    return Rollout([Trajectory(segments)], Stop.FINISHED)


def prompt_of(token_ids) -> Segment:
    return Segment(Author.PROMPT, token_ids)


def invented(token_ids) -> Segment:
    spans = [VersionSpan(7, len(token_ids))]
    return model_segment(Completion(token_ids, [0.0] * len(token_ids), spans, FinishReason.STOP), SamplingParams())


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda p, c, s: None, "run must return a Rollout, not NoneType"),
        (lambda p, c, s: Rollout([p], Stop.FINISHED), "must be a Trajectory, not list"),
        (lambda p, c, s: Rollout([], "done"), "must be a Stop, not 'done'"),
        (lambda p, c, s: of(prompt_of(p), invented([1, 2])), "the engine did not sample"),
        (lambda p, c, s: of(prompt_of(p), invented(c.token_ids)), "log-probabilities"),
        (lambda p, c, s: of(prompt_of(p), model_segment(c, SamplingParams(temperature=0.5))), "temperature"),
        (lambda p, c, s: of(prompt_of(p[1:]), model_segment(c, s)), "a different context"),
        (lambda p, c, s: of(prompt_of([END, *p[1:]]), model_segment(c, s)), "a different context"),
        (lambda p, c, s: of(prompt_of(p), Segment(Author.DEMONSTRATION, [1])), "demonstration"),
        (lambda p, c, s: of(prompt_of(p), model_segment(c, s), Segment(Author.TOOL, [1] * 500)), "502 response tokens"),
        (
            lambda p, c, s: Rollout([Trajectory([prompt_of(p), model_segment(c, s)])] * 2, Stop.FINISHED),
            "are already in another trained segment",
        ),
    ],
)
def test_a_rollout_that_would_be_trained_on_wrongly_is_refused(run, make, problem):
    _, rollout = run(answering(make), "5")
    assert (rollout.stop, rollout.trajectories) == (Stop.ERROR, [])
    assert problem in rollout.error


def test_a_completion_may_be_cut(run):
    def cut(prompt, completion, sampling):
        head = Completion(
            completion.token_ids[:2], completion.logprobs[:2], [VersionSpan(7, 2)], completion.finish_reason
        )
        return of(prompt_of(prompt), model_segment(head, sampling))

    _, rollout = run(answering(cut), "2 and 3 are 5")
    assert rollout.error is None
    assert rollout.trajectories[0].num_trained_tokens == 2


@pytest.mark.parametrize("kept", [0, 1])
def test_loop_may_keep_one_of_several_samples_of_a_context(run, kept):
    """The second trajectory begins like the first and continues it."""

    class BestOf(AgentLoop):
        async def run(self, task, generate, tools, interaction, sampling):
            prompt = self.chat.start(task.messages, ())
            sampling = replace(sampling, stop=("5",))
            first = await generate(prompt, sampling)
            second = await generate(prompt, replace(sampling, stop=()))
            return of(prompt_of(prompt), model_segment((first, second)[kept], sampling))

    _, rollout = run(BestOf, "2 and 3 are 5", "2 and 3 are 5, I think")
    assert rollout.error is None
