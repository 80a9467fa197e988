"""`hacking`: list rewarded rollouts that a guard flagged, and compare the mean scores of flagged and other rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import JsonValue

from agentrl.config.reward_sources import GuardsConfig
from agentrl.replay.base import Replay, Result, Table
from agentrl.replay.rescore.scoring import COLUMNS, view_of
from agentrl.replay.settings import replay_config
from agentrl.replay.trusted_config import lookup
from agentrl.reporting.guard_report import (
    SUSPECT_COLUMNS,
    TALLY_COLUMNS,
    Disagreements,
    disagreements,
    tally_rows,
    worst,
)
from agentrl.rewards.guards import Guards, length_outliers
from agentrl.store import StoredRollout
from agentrl.types.rollout import GUARD

_OF_TEXT = tuple(name for name in COLUMNS if name != "trajectories.segments")
NUM_SUSPECTS = 20


def hacking(replay: Replay) -> Result:
    """Compare the scores of the saved rollouts with the results of the guards (`agentrl.rewards.guards`).

    If no guards ran in training, or an override changes `reward.guards` (for example `reward.guards.max_answers=2`),
    the guards run now on the text of the messages. The guards' penalties do not change the scores.

    Raises:
        DataError: the rollouts cannot be read.
    """
    reward = replay_config(replay).reward
    recompute = bool(lookup(replay.options.overrides, "reward.guards"))
    groups = (_with_guards(group, reward.guards, recompute) for group in replay.run.groups(_OF_TEXT))
    found = disagreements(groups, reward.success_threshold)
    return Result("hacking", _summary(found), list(_tables(found)), _values(found))


def _with_guards(group: Sequence[StoredRollout], config: GuardsConfig, recompute: bool) -> list[StoredRollout]:
    """Return the group with guard results. Saved results are kept unless `recompute` is set."""
    guards = Guards(config.model_copy(update={"penalty": 0.0}))
    lengths = [sum(len(text) for text in _turns(stored)) for stored in group]
    unlike = length_outliers(lengths, config.length_ratio) if "length" in config.names else None
    members = []
    for place, stored in enumerate(group):
        saved = stored.rollout.rewards.items()
        rewards = {name: value for name, value in saved if not (recompute and name.startswith(GUARD))}
        if "score" in rewards and not any(name.startswith(GUARD) for name in rewards):
            rewards = guards(rewards, _turns(stored))
            rewards |= {} if unlike is None else {f"{GUARD}length": float(unlike[place])}
        members.append(replace(stored, rollout=replace(stored.rollout, rewards=rewards)))
    return members


def _turns(stored: StoredRollout) -> list[str]:
    _, extra = view_of(stored, lambda token_ids: "")
    return [str(text) for text in extra["turn_texts"]]  # type: ignore[attr-defined]  # a list of texts


def _summary(found: Disagreements) -> str:
    if not found.num_rollouts:
        return "no rollout has a score"
    share = len(found.suspects) / found.num_rollouts
    rollouts = f"{len(found.suspects):,} of {found.num_rollouts:,} rollouts ({share:.1%})"
    return f"{rollouts} are rewarded although a guard flagged them"


def _tables(found: Disagreements) -> Iterator[Table]:
    note = "Rewarded: the score reaches reward.success_threshold, or exceeds the mean of the rest of the group."
    yield Table("guards", TALLY_COLUMNS, tally_rows(found), note)
    if rows := [suspect.cells() for suspect in worst(found, NUM_SUSPECTS)]:
        yield Table(f"rewarded although a guard flagged them (at most {NUM_SUSPECTS})", SUSPECT_COLUMNS, rows)


def _values(found: Disagreements) -> dict[str, JsonValue]:
    """All suspects and tallies, machine-readable."""
    tallies: JsonValue = {name: tally.values() for name, tally in found.tallies.items()}
    suspects: JsonValue = [suspect.values() for suspect in found.suspects]
    return {"num_rollouts": found.num_rollouts, "guards": tallies, "suspects": suspects}
