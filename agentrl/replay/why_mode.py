"""`why`: the saved rollouts that no update used, each with its reason and what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from agentrl.algos.credit import CUT_OFF
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.replay.base import Replay, Result, Table
from agentrl.replay.settings import replay_config
from agentrl.store import StoredRollout
from agentrl.types.excluded import Excluded

NUM_SHOWN = 50
_COLUMNS = ("error", "infra_failed", "trajectories.segments", "trajectories.advantages")
_ADVICE = {
    Excluded.FAILED: "the agent loop raised an error: fix the loop or its environment",
    Excluded.INFRA_ERROR: "the infrastructure of a tool or reward failed: check its service and timeouts",
    Excluded.NO_TRAINED_TOKENS: "the model sampled no token: raise data.max_response_length or shorten the prompt",
    Excluded.OVERLONG: "algorithm.overlong_filter dropped it: raise data.max_response_length, or disable the filter",
    Excluded.NO_ADVANTAGE: "the algorithm drops rollouts of advantage 0: use tasks with different rewards in a group",
    Excluded.NOT_CREDITED: "no advantages were computed: validation and rollout_only do not train",
}


def why(replay: Replay) -> Result:
    """List the saved rollouts that were not trained on. Groups that a run does not save are not listed.

    Raises:
        DataError: the rollouts cannot be read.
    """
    algorithm = replay_config(replay).algorithm
    found = [(each, reason_of(each, algorithm)) for each in replay.run.rollouts(_COLUMNS)]
    excluded = [(each, reason) for each, reason in found if reason]
    counts = Counter(reason for _, reason in excluded)
    summary = f"{len(excluded):,} of {len(found):,} saved rollouts were not trained on"
    counted = Table(
        "reasons", ("reason", "rollouts", "what to change"), [(r.value, n, _ADVICE[r]) for r, n in counts.items()]
    )
    return Result("why", summary, [counted, _listed(excluded)] if excluded else (), _values(excluded, len(found)))


def reason_of(stored: StoredRollout, algorithm: AlgorithmConfig) -> Excluded | None:
    """Return why the rollout was not trained on; None if it was, as far as the saved rollout shows."""
    if stored.rollout.excluded:
        return stored.rollout.excluded
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
