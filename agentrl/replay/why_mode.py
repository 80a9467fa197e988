"""`why`: lists saved rollouts that no update used, with the reason and the responsible configuration key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from pydantic import JsonValue

from agentrl.algos.credit import CUT_OFF
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import DataError
from agentrl.replay.base import Replay, Result, Table
from agentrl.replay.settings import replay_config
from agentrl.store import StoredRollout
from agentrl.types.excluded import Excluded
from agentrl.utils.short_repr import counted

NUM_SHOWN = 50
_NOT_SAVED = "Groups that no step trained on are saved unless trainer.save_excluded=none"
_COLUMNS = ("excluded", "rewards", "error", "infra_failed", "trajectories.segments", "trajectories.advantages")
_ADVICE = {
    Excluded.FAILED: "the agent loop raised an error: fix the loop or its environment",
    Excluded.INFRA_ERROR: "the infrastructure of a tool or reward failed: check its service and timeouts",
    Excluded.NO_TRAINED_TOKENS: "the model sampled no token: raise data.max_response_length or shorten the prompt",
    Excluded.EQUAL_REWARDS: "algorithm.filter_groups filtered the rollout's group, whose rewards are equal: use"
    " tasks of another difficulty, or raise rollout.n",
    Excluded.TOO_FEW: "algorithm.filter_groups filtered the rollout's group, which has fewer than two valid rollouts:"
    " find out why the others failed",
    Excluded.STALE: "the rollout's group became older than trainer.max_staleness, and its task was requeued with a new"
    " uid: raise trainer.max_staleness, or limit long rollouts",
    Excluded.OVER_SAMPLED: "trainer.over_sampling started more groups than the steps used; the rollout's group was not"
    " used in time, and its task was requeued with a new uid: lower trainer.over_sampling, or limit long rollouts",
    Excluded.OVERLONG: "algorithm.overlong_filter dropped the rollout: raise data.max_response_length, or disable the"
    " filter",
    Excluded.NO_ADVANTAGE: "the algorithm drops rollouts with advantage 0: use tasks with different rewards in a group",
    Excluded.REJECTED_BY_CORRECTION: "algorithm.rollout_correction.rollout_rs rejected all tokens of the rollout: widen"
    " algorithm.rollout_correction.rollout_rs_threshold, or reduce the mismatch",
    Excluded.NOT_CREDITED: "no advantages were computed: validation and rollout_only do not train",
}


def why(replay: Replay) -> Result:
    """List the saved rollouts that were not trained on, including all rollouts of groups that no step used.

    With `options.uid`, the summary explains in sentences what happened to this group.

    Raises:
        DataError: the rollouts cannot be read, or no saved group has the uid.
    """
    algorithm, uid = replay_config(replay).algorithm, replay.options.uid
    saved = chain(replay.run.rollouts(_COLUMNS), replay.run.dropped(_COLUMNS))
    found = [(each, reason_of(each, algorithm)) for each in saved if uid is None or each.task.uid == uid]
    if uid is not None and not found:
        raise DataError(f"'{replay.run.name}': no saved group has the uid '{uid}'. {_NOT_SAVED}")
    excluded = [(each, reason) for each, reason in found if reason]
    counts = Counter(reason for _, reason in excluded)
    summary = f"{len(excluded):,} of {len(found):,} saved rollouts were not trained on"
    if uid is not None:
        summary = explained(uid, found)
    by_reason = Table(
        "reasons", ("reason", "rollouts", "what to change"), [(r.value, n, _ADVICE[r]) for r, n in counts.items()]
    )
    return Result("why", summary, [by_reason, _listed(excluded)] if excluded else (), _values(excluded, len(found)))


def explained(uid: str, found: Sequence[tuple[StoredRollout, Excluded | None]]) -> str:
    """Explain what happened to the rollouts of one uid: one sentence per step and reason."""
    places = Counter((stored.step, reason) for stored, reason in found)
    totals = Counter(stored.step for stored, _ in found)
    return " ".join(_sentence(uid, step, reason, num, totals[step]) for (step, reason), num in places.items())


def _sentence(uid: str, step: int, reason: Excluded | None, num: int, total: int) -> str:
    rollouts = f"{num} of {counted(total, 'rollout')} of '{uid}'"
    if reason is None:
        return f"Step {step} trained on {rollouts}."
    return f"Step {step} did not train on {rollouts} ({reason}): {_ADVICE[reason]}."


def reason_of(stored: StoredRollout, algorithm: AlgorithmConfig) -> Excluded | None:
    """Return why the rollout was not trained on; None if its saved values show no reason."""
    if reason := stored.excluded or stored.rollout.excluded:
        return reason
    credited = [each for each in stored.advantages if each is not None]
    if not credited:
        return Excluded.NOT_CREDITED
    if algorithm.overlong_filter and stored.rollout.stop in CUT_OFF:
        return Excluded.OVERLONG
    drops = algorithm.preset.family != "policy" or algorithm.zero_variance_groups == "drop"
    equal = drops and algorithm.estimator != "scores" and not any(any(each) for each in credited)
    return Excluded.NO_ADVANTAGE if equal else None


def _listed(excluded: Sequence[tuple[StoredRollout, Excluded]]) -> Table:
    rows = [(s.step, s.task.uid, s.number, reason.value, s.rollout.error or "") for s, reason in excluded[:NUM_SHOWN]]
    return Table(f"rollouts, {NUM_SHOWN} at most", ("step", "uid", "rollout", "reason", "error"), rows)


def _values(excluded: Sequence[tuple[StoredRollout, Excluded]], num_rollouts: int) -> dict[str, JsonValue]:
    listed: JsonValue = [
        {"step": s.step, "uid": s.task.uid, "rollout": s.number, "reason": r.value} for s, r in excluded
    ]
    return {"num_rollouts": num_rollouts, "excluded": listed}
