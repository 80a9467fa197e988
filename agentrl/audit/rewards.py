"""Check rewards, the scored text, rewards of tools and turns, and durations."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import NO_TOKENIZER, AuditedRollout, AuditedTrajectory
from agentrl.audit.reading.run_info import NO_CONFIG, RunInfo
from agentrl.audit.template import TemplateOracle

OWN_SCORE = "a custom agent loop may score it itself"
_SLACK_S = 1e-3
"""Tolerance in seconds, because the clock is read at slightly different moments."""


def check_rewards(check: Checker) -> None:
    """Check that rewards are finite, and that `reward` equals the score, or 0 if there is no score."""
    step = check.step
    for path in ("rewards.value", "tool_rewards.value", "turn_rewards.value", "tool_calls.reward", "reward"):
        check.require("rewards", path, np.isfinite(step[path]), "a finite number")
    is_score = np.array([key == "score" for key in step["rewards.name"]], np.bool_)
    items, expected = step.items["rewards"], np.zeros(len(step))
    expected[items.row[is_score]] = step["rewards.value"][is_score]
    check.require("rewards", "reward", step["reward"] == expected, expected)


def check_named_rewards(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    """Check which rewards exist: a score (unless the rollout failed), rewards of called tools, and turn rewards."""
    row, step = rollout.row, check.step
    names = _of_row(check, "rewards", row)
    if len(set(names)) != len(names):
        check.problem("rewards", row, "rewards", "each name once", ", ".join(names))
    if rollout.kind is None or known.tools is None:
        check.ledger.skip("rewards", f"names: {rollout.why or 'no saved tool schemas'}")
        return
    scored = not (rollout.failed or known.unscored or step["infra_failed"][row])
    if scored != ("score" in names) and not (rollout.own and not scored):  # a custom loop may score its rollout itself
        why = "no reward is configured" if known.unscored else "the rollout failed"
        expected = "a score" if scored else f"no score: {why}"
        check.problem("rewards", row, "rewards.name", expected, ", ".join(names) or "none")
    every = rollout.options.names.union(*(trajectory.wording.names for trajectory in rollout.trajectories))
    offered = every & {call.name for call in rollout.calls}
    allowed = offered | ({"interaction"} if known.has_user else set()) | ({known.environment} - {""})
    allowed |= {"verifier"} if step["data_source"][row] == "task_folder" else set()
    for name in _of_row(check, "tool_rewards", row):
        if name not in allowed:
            check.problem("rewards", row, "tool_rewards.name", "a tool that was called, or the environment", name)
    _check_turn_rewards(check, rollout, known)


def _of_row(check: Checker, path: str, row: int) -> Sequence[str]:
    ends = check.step.items[path].ends
    keys: Sequence[str] = check.step[f"{path}.name"][ends[row] : ends[row + 1]]
    return keys


def _check_turn_rewards(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    step = check.step
    start, end = step.items["turn_rewards"].ends[rollout.row : rollout.row + 2].tolist()
    first = step.items["trajectories.segments"].ends
    turns = {(t.number, turn.segment - int(first[t.index])) for t in rollout.trajectories for turn in t.turns}
    for index in range(start, end):
        if rollout.own and step["turn_rewards.name"][index] != "interaction":
            continue  # the custom loop set this reward itself
        place = (int(step["turn_rewards.trajectory"][index]), int(step["turn_rewards.segment"][index]))
        if not known.has_user or place not in turns or step["turn_rewards.name"][index] != "interaction":
            expected = "a model turn" if known.has_user else "none: no simulated user is configured"
            check.problem("rewards", rollout.row, f"turn_rewards[{index - start}]", expected, place)


def check_scored_text(check: Checker, rollout: AuditedRollout, known: RunInfo, oracle: TemplateOracle | None) -> None:
    """Check the SHA-256 of the scored text: the model's turns joined by newlines, plus tool text if configured."""
    saved = check.step["scored_text_sha256"][rollout.row]
    scored = not rollout.failed and not known.unscored
    if saved is None and not scored:
        return
    if saved is None and (rollout.kind is None or rollout.own):
        check.ledger.skip("scored text", f"whether the rollout was scored: {rollout.why or OWN_SCORE}")
    elif saved is None or not scored:
        check.ledger.count("scored text", 1)
        expected = "the hash of the scored text" if scored else "none: the rollout was not scored"
        check.problem("scored text", rollout.row, "scored_text_sha256", expected, saved)
    elif known.config is None or oracle is None:
        check.ledger.skip("scored text", NO_CONFIG if known.config is None else NO_TOKENIZER)
    elif (text := _scored_text(check, rollout, known, oracle)) is None:
        check.ledger.skip(
            "scored text", "token ids outside the vocabulary, unreadable messages, or operations that do not fit"
        )
    else:
        check.ledger.count("scored text", 1)
        if (found := sha256(text.encode("utf-8", "surrogatepass")).hexdigest()) != saved:
            what = "everything after the prompt" if known.get("reward.include_tool_text") else "the model's turns"
            check.problem("scored text", rollout.row, "scored_text_sha256", f"{found} ({what})", saved)


def _scored_text(check: Checker, rollout: AuditedRollout, known: RunInfo, oracle: TemplateOracle) -> str | None:
    if len(rollout.trajectories) != check.step.items["trajectories"].lengths[rollout.row]:
        return None
    if rollout.own and not all(trajectory.fits for trajectory in rollout.trajectories):
        return None  # if operations do not match a trajectory's messages and segments, its turns are unknown
    if known.get("reward.include_tool_text"):
        responses = [_response(check, trajectory) for trajectory in rollout.trajectories]
        within = all(map(oracle.can_read, responses))
        return "\n".join(oracle.texts(responses)) if within and responses else "" if within else None
    # turns before a continuation point are in prompt segments, and are not scored
    authors = check.step["trajectories.segments.author"]
    turns = [turn for trajectory in rollout.trajectories for turn in trajectory.turns]
    texts = [turn.text for turn in turns if turn.segment >= 0 and authors[turn.segment] != "prompt"]
    return None if None in texts else "\n".join(text or "" for text in texts)


def _response(check: Checker, trajectory: AuditedTrajectory) -> list[int]:
    """Token ids after the prompt."""
    step, path = check.step, "trajectories.segments"
    start, end = step.items[path].ends[trajectory.index : trajectory.index + 2].tolist()
    ends = step.items[f"{path}.token_ids"].ends
    first = start + int(start < end and step[f"{path}.author"][start] == "prompt")
    ids: list[int] = step[f"{path}.token_ids"][ends[first] : ends[end]].tolist()
    return ids


def check_times(check: Checker, first_turn: int) -> None:
    """Check that times are finite and not negative, and that calls end before their rollout ends.

    In the first trajectory, calls must also start after the calls of earlier turns.

    Args:
        first_turn: the turn from which a replay continued; earlier calls have the times of the saved rollout.
    """
    step = check.step
    paths = ("duration_s", "tool_calls.duration_s", "tool_calls.started_s")
    for path in paths:
        values = step[path]
        check.require("times", path, np.isfinite(values) & (values >= 0), "seconds, 0 or more")
    rows, turns = step.items["tool_calls"].row, step["tool_calls.turn"]
    started, ended = step["tool_calls.started_s"], step["tool_calls.started_s"] + step["tool_calls.duration_s"]
    here = turns >= first_turn
    within = ended <= step["duration_s"][rows] + _SLACK_S
    check.require("times", "tool_calls.duration_s", within | ~here, "a call within its rollout")
    ran = here & (started > 0)  # calls that did not run have no start time
    late = np.zeros(len(rows), np.bool_)
    latest: dict[int, tuple[int, float, float]] = {}  # row -> (turn, end of its calls, end of earlier turns' calls)
    trajectories = step["tool_calls.trajectory"]
    for index in np.flatnonzero(ran & (trajectories == 0)).tolist():
        row, turn, end = int(rows[index]), int(turns[index]), float(ended[index])
        before = latest.get(row, (turn, 0.0, 0.0))
        floor = before[2] if before[0] == turn else max(before[1], before[2])
        late[index] = started[index] < floor - _SLACK_S
        latest[row] = (turn, max(end, before[1]) if before[0] == turn else end, floor)
    check.require("times", "tool_calls.started_s", ~late, "a start time after the calls of earlier turns")
