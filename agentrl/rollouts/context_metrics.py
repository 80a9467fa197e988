"""Metrics of rollouts with several trajectories: compactions and sub-agents."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Rollout


def context_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return metrics by name: of compactions if there are any, and of sub-agents if there are any.

    - `compaction/mean`: compactions per rollout; `/tokens_before`: mean length of the replaced contexts in tokens;
      `/tokens_after`: mean length of the new prompts in tokens
    - `sub_agents/mean`: sub-agents per rollout; `/response_length`: mean number of tokens after a sub-agent's prompt
    """
    restarts = [each for rollout in rollouts for each in _opened(rollout, OperationKind.RESTART)]
    agents = [each for rollout in rollouts for each in _opened(rollout, OperationKind.MESSAGES) if each[2] is not None]
    metrics: dict[str, float] = {}
    if restarts:
        before = [len(rollout.trajectories[parent].token_ids) for rollout, _, parent in restarts if parent is not None]
        after = [len(rollout.trajectories[number].segments[0]) for rollout, number, _ in restarts]
        metrics["compaction/mean"] = len(restarts) / len(rollouts)
        metrics["compaction/tokens_before"], metrics["compaction/tokens_after"] = fmean(before), fmean(after)
    if agents:
        lengths = [rollout.trajectories[number].num_response_tokens for rollout, number, _ in agents]
        metrics["sub_agents/mean"] = len(agents) / len(rollouts)
        metrics["sub_agents/response_length"] = fmean(lengths)
    return metrics


def _opened(rollout: Rollout, kind: OperationKind) -> list[tuple[Rollout, int, int | None]]:
    """Return (rollout, trajectory number, number of its parent) for each trajectory that a `kind` operation opened."""
    known = range(len(rollout.trajectories))
    opened = [(rollout, each.trajectory, each.parent[0]) for each in rollout.operations if each.kind is kind]
    return [each for each in opened if each[1] in known and each[2] in (None, *known)]
