"""Checks that the rollout that an agent loop returned is valid for training."""

from __future__ import annotations

import math

from agentrl.agent_loops.base import AgentLoop
from agentrl.agent_loops.recording import Recording
from agentrl.store.text import write_json
from agentrl.tools.base import InfraError
from agentrl.types.rollout import Rollout, Stop, TurnReward
from agentrl.types.trajectory import Author, Segment, Trajectory
from agentrl.utils.user_code import defined_at, format_error


def checked(rollout: object, loop: AgentLoop, recording: Recording, max_response_tokens: int) -> Rollout:
    """Return `rollout` if it is valid for training; otherwise a failed rollout whose error names the agent loop."""
    try:
        return _check(rollout, recording, max_response_tokens)
    except (TypeError, ValueError) as error:
        where = f"agent loop {type(loop).__name__}{defined_at(loop.run)}"
        return Rollout([], Stop.ERROR, error=f"{where}: {type(error).__name__}: {error}")


def _check(rollout: object, recording: Recording, max_response_tokens: int) -> Rollout:
    if not isinstance(rollout, Rollout):
        raise TypeError(f"run must return a Rollout, not {type(rollout).__name__}")
    if not isinstance(rollout.stop, Stop):
        raise TypeError(f"rollout.stop must be a Stop, not {rollout.stop!r}")
    for number, trajectory in enumerate(rollout.trajectories):
        if not isinstance(trajectory, Trajectory):
            raise TypeError(f"trajectory {number} must be a Trajectory, not {type(trajectory).__name__}")
        if trajectory.num_response_tokens > max_response_tokens:
            raise ValueError(
                f"trajectory {number} has {trajectory.num_response_tokens} response tokens, "
                f"data.max_response_length allows {max_response_tokens}"
            )
        _check_sampled(number, trajectory, recording)
    for reward in rollout.turn_rewards:
        _check_address(reward, rollout)
    _check_facts(rollout.facts)
    return rollout


def _check_facts(facts: object) -> None:
    if not isinstance(facts, dict):
        raise TypeError(f"rollout.facts must be a dict, not {type(facts).__name__}")
    for name, value in facts.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of rollout.facts must be strings, not {name!r:.100}")
        try:
            write_json(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"rollout.facts['{name}'] cannot be saved as JSON: {error}") from error


def _check_address(reward: TurnReward, rollout: Rollout) -> None:
    where = f"turn reward '{reward.name}'"
    if reward.trajectory not in range(len(rollout.trajectories)):
        raise ValueError(f"{where}: there is no trajectory {reward.trajectory}")
    if reward.segment not in range(len(rollout.trajectories[reward.trajectory].segments)):
        raise ValueError(f"{where}: trajectory {reward.trajectory} has no segment {reward.segment}")
    if not math.isfinite(reward.value):
        raise ValueError(f"{where} is {reward.value}, not a finite number")


def _check_sampled(number: int, trajectory: Trajectory, recording: Recording) -> None:
    start = 0
    for segment in trajectory.segments:
        stop = start + len(segment)
        if segment.author is Author.DEMONSTRATION:
            raise ValueError(f"trajectory {number}: a live rollout must not contain a demonstration")
        if segment.author is Author.MODEL:
            try:
                _check_same(segment, recording.claim(trajectory.token_ids, start, stop, segment.logprobs or ()))
            except ValueError as error:
                raise ValueError(f"trajectory {number}: {error}") from error
        start = stop


def _check_same(segment: Segment, sampled: list[Segment]) -> None:
    same = len(sampled) == 1 and segment.logprobs is sampled[0].logprobs  # usually the same list: no values to compare
    if not same and list(segment.logprobs or ()) != [logprob for part in sampled for logprob in part.logprobs or ()]:
        raise ValueError("log-probabilities of sampled tokens are not the engine's")
    if any(part.temperature != segment.temperature for part in sampled):
        raise ValueError("the temperature of a model segment is not the one at which its tokens were sampled")


def salvaged(loop: AgentLoop, stop: Stop) -> Rollout:
    """Return a rollout with the content of the loop's conversations; empty if the loop has none."""
    if not loop.conversations:
        return Rollout([], stop)
    rollout = loop.conversations[0].rollout()
    rollout.stop = stop
    return rollout


def failed_rollout(loop: AgentLoop, error: Exception) -> Rollout:
    """Return the rollout of a loop that raised `error`."""
    rollout = salvaged(loop, Stop.ERROR)
    rollout.error = format_error(error)
    rollout.infra_failed = isinstance(error, InfraError)
    return rollout


def innermost(error: Exception) -> Exception:
    """Return the first error inside nested exception groups, such as those of a loop's own TaskGroup."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
