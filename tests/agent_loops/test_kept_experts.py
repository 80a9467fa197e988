"""Routed experts that an engine reports are stored in the trajectory, turn by turn; otherwise nothing is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from loop_builders import ListEngine, add, call, config, roll

from agentrl.agent_loops.base import AgentLoop, agent_loops, model_segment
from agentrl.algos.credit import samples_of
from agentrl.engines.base import Completion, GenerateRequest
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory


class RoutingEngine(ListEngine):
    """In its n-th answer, both layers sent every token to expert n. For answers in `silent` it reports no experts."""

    def __init__(self, *replies: str, silent: tuple[int, ...] = ()) -> None:
        super().__init__(*replies)
        self._silent = silent

    async def generate(self, request: GenerateRequest) -> Completion:
        turn = len(self.requests)
        completion = await super().generate(request)
        length = len(request.token_ids) + len(completion.token_ids) - 1
        experts = None if turn in self._silent else torch.full((length, 2, 1), turn, dtype=torch.int32)
        return replace(completion, routed_experts=experts)


SUM = call("add", a=2, b=3)


def test_a_token_keeps_the_experts_of_the_pass_that_sampled_after_it():
    rollout = roll(RoutingEngine(SUM, "5"), config(), tools=(add,))
    prompt, said, told, answer = rollout.trajectories[0].segments
    experts = rollout.trajectories[0].routed_experts
    first = len(prompt) + len(said) - 1
    assert experts[:, 0, 0].tolist() == [0] * first + [1] * (1 + len(told) + len(answer) - 1)
    (sample,) = samples_of([Group(Task([], uid="u"), [rollout])])
    assert sample.routed_experts is experts


def test_experts_of_a_turn_without_them_come_from_the_next():
    experts = roll(RoutingEngine(SUM, SUM, "5", silent=(1,)), config()).trajectories[0].routed_experts
    assert set(experts.flatten().tolist()) == {0, 2}
    last = roll(RoutingEngine(SUM, "5", silent=(1,)), config()).trajectories[0]
    assert 0 < len(last.routed_experts) < len(last.token_ids) - 1
    assert roll(ListEngine(SUM, "5"), config()).trajectories[0].routed_experts is None


@pytest.mark.parametrize("keeps", [True, False])
def test_loops_that_build_rollouts_may_keep_or_drop_experts(monkeypatch, keeps):
    class Own(AgentLoop):
        async def run(self, task, generate, tools, interaction, sampling):
            trajectory = Trajectory([Segment(Author.PROMPT, self.chat.start(task.messages, ()))])
            completion = await generate(trajectory.token_ids, sampling)
            trajectory.append(model_segment(completion, sampling))
            if keeps:
                trajectory.keep_routed_experts(completion.routed_experts)
            return Rollout([trajectory], Stop.FINISHED)

    monkeypatch.setitem(agent_loops._objects, "own", Own)
    rollout = roll(RoutingEngine("5"), config("own"))
    assert rollout.error is None
    assert (rollout.trajectories[0].routed_experts is not None) == keeps
