"""Find rollouts that were rewarded although they raised a guard (`guard/<name>` is 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

from pydantic import JsonValue

from agentrl.reporting.formatting import number
from agentrl.rewards.guards import PENALTY, addresses_grader, raised
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.types.messages import message_text
from agentrl.types.rollout import GUARD, Rollout

COLUMNS = ("rewards",)
"""Columns that are read for all rollouts. All other columns are read only for the rollouts that are displayed."""
NUM_STEPS = 50
"""Number of steps that the report of a run covers: the last steps of the run."""
NUM_SHOWN = 12
_EXCERPT = 240

TALLY_COLUMNS = ("guard", "raised", "share", "rewarded", "mean score if raised", "mean score if not")
SUSPECT_COLUMNS = ("step", "uid", "rollout", "score", "others", "components", "guards", "excerpt")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rollout that was rewarded although it raised a guard.

    Attributes:
        number: index of the rollout in its group.
        others: mean score of the group's other rollouts; None if no other rollout has a score.
        components: reward components by name, without guards.
        guards: names of the guards that the rollout raised.
        excerpt: the text that the model addressed to the grader; if there is none, the end of the model's text.
    """

    step: int
    uid: str
    number: int
    score: float
    others: float | None
    components: Mapping[str, float]
    guards: Sequence[str]
    excerpt: str

    def cells(self) -> list[str | int | float | None]:
        """Return a table row with the columns `SUSPECT_COLUMNS`."""
        components = ", ".join(f"{name} {number(value)}" for name, value in self.components.items())
        place = (self.step, self.uid, self.number)
        return [*place, self.score, self.others, components, ", ".join(self.guards), self.excerpt]

    def values(self) -> dict[str, JsonValue]:
        """Return the values for JSON."""
        return {**asdict(self), "components": dict(self.components), "guards": list(self.guards)}


@dataclass(slots=True)
class Tally:
    """Statistics of one guard.

    Attributes:
        raised: scores of the rollouts that raised the guard.
        others: scores of the rollouts that the guard checked, and that did not raise it.
        num_rewarded: number of rewarded rollouts that raised the guard.
    """

    raised: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    num_rewarded: int = 0

    def values(self) -> dict[str, JsonValue]:
        """Return the values for JSON; the mean of an empty list is null."""
        means = {"mean_raised": _mean(self.raised), "mean_others": _mean(self.others)}
        return {"raised": len(self.raised), "others": len(self.others), "rewarded": self.num_rewarded, **means}


@dataclass(slots=True)
class Disagreements:
    """Result of `disagreements`.

    Attributes:
        num_rollouts: number of rollouts with a score.
        suspects: the suspects, in the order of the rollouts.
        tallies: name of a guard -> its statistics.
    """

    num_rollouts: int = 0
    suspects: list[Suspect] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)


def disagreements(groups: Iterable[Sequence[StoredRollout]], threshold: float) -> Disagreements:
    """Find the suspects in groups of saved rollouts, and count how often each guard was raised.

    A rollout counts as rewarded if its score reaches `threshold`. A rollout also counts as rewarded if its score is
    above the mean score of the other rollouts in its group, because training makes such a rollout more likely. Rollouts
    without a score are skipped.
    """
    found = Disagreements()
    for group in groups:
        scored = [stored for stored in group if "score" in stored.rollout.rewards]
        scores = [stored.rollout.reward for stored in scored]
        for place, stored in enumerate(scored):
            rest = scores[:place] + scores[place + 1 :]
            _count(found, stored, threshold, fmean(rest) if rest else None)
    return found


def of_run(store: TrajectoryStore, threshold: float) -> Disagreements:
    """Find the suspects in the last `NUM_STEPS` steps of a run; only the `NUM_SHOWN` worst suspects get an excerpt."""
    found = disagreements(_groups(store.scan(steps=store.steps[-NUM_STEPS:], columns=COLUMNS)), threshold)
    shown = [(each.step, each.uid, each.number) for each in worst(found, NUM_SHOWN)]
    for index, suspect in enumerate(found.suspects):
        place = (suspect.step, suspect.uid, suspect.number)
        if place in shown:
            found.suspects[index] = replace(suspect, excerpt=excerpt(store.rollout(*place).rollout))
    return found


def tally_rows(found: Disagreements) -> list[list[str | int | float | None]]:
    """Return one row per guard, with the columns `TALLY_COLUMNS`."""
    rows: list[list[str | int | float | None]] = []
    for name, tally in found.tallies.items():
        share = len(tally.raised) / (len(tally.raised) + len(tally.others))
        means = (_mean(tally.raised), _mean(tally.others))
        rows.append([name, len(tally.raised), f"{share:.1%}", tally.num_rewarded, *means])
    return rows


def worst(found: Disagreements, most: int) -> list[Suspect]:
    """Return at most `most` suspects: first those that raised the most guards, and among equals the latest step."""
    return sorted(found.suspects, key=lambda suspect: (-len(suspect.guards), -suspect.step))[:most]


def _mean(scores: Sequence[float]) -> float | None:
    return fmean(scores) if scores else None


def _groups(rollouts: Iterable[StoredRollout]) -> Iterator[list[StoredRollout]]:
    group: list[StoredRollout] = []
    for stored in rollouts:
        if group and (stored.step, stored.task.uid) != (group[0].step, group[0].task.uid):
            yield group
            group = []
        group.append(stored)
    if group:
        yield group


def _count(found: Disagreements, stored: StoredRollout, threshold: float, others: float | None) -> None:
    rewards = stored.rollout.rewards
    score, up = stored.rollout.reward, raised(rewards)
    rewarded = score >= threshold or (others is not None and score > others)
    found.num_rollouts += 1
    for name in (name.removeprefix(GUARD) for name in rewards if name.startswith(GUARD)):
        tally = found.tallies.setdefault(name, Tally())
        (tally.raised if name in up else tally.others).append(score)
        tally.num_rewarded += name in up and rewarded
    if up and rewarded:
        place = (stored.step, stored.task.uid, stored.number)
        found.suspects.append(Suspect(*place, score, others, _components(rewards), up, excerpt(stored.rollout)))


def _components(rewards: Mapping[str, float]) -> dict[str, float]:
    own = {name: value for name, value in rewards.items() if not name.startswith(GUARD)}
    return {name: value for name, value in own.items() if name not in ("score", PENALTY)}


def excerpt(rollout: Rollout) -> str:
    """Return the text that the model addressed to the grader, with context, or else the end of the model's text."""
    messages = [message for dialogue in rollout.dialogues for message in dialogue]
    turns = [message_text(message) for message in messages if message["role"] == "assistant"]
    text = "\n".join(turns).strip()
    words = addresses_grader(turns)
    # `words` is taken from normalised text, so the original text may not contain it
    place = text.find(words) if words else -1
    start = max(0, place - _EXCERPT // 3) if place >= 0 else max(0, len(text) - _EXCERPT)
    end = start + _EXCERPT
    return f"{'… ' if start else ''}{text[start:end].strip()}{' …' if end < len(text) else ''}"
