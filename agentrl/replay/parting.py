"""Where rollouts that were sampled under one seed first differ."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from agentrl.replay.attempts import Attempt, Pair, Segments
from agentrl.replay.base import Cell, Table
from agentrl.trajectory import Author


@dataclass(frozen=True, slots=True, order=True)
class Parting:
    """The first token that differs.

    Attributes:
        turn: of the model, counted from 0: the one it stands in, or the next where another author wrote it.
        author: who wrote it.
        token: its place in that author's segment, from 0.
    """

    turn: int
    author: str
    token: int


def parting(ours: Segments, theirs: Segments) -> Parting | None:
    """Where they part; None where they are the same to the end.

    model [3 4] tool [5] model [6]  and  model [3 4] tool [5] model [7]  part at turn 1, model, token 0.
    """
    turn = 0
    for mine, other in zip_longest(ours, theirs):
        if mine != other:
            return Parting(turn, (mine or other)[0].value, _first_difference(mine, other))
        turn += mine[0].trained
    return None


def _first_difference(mine: tuple[Author, array[int]] | None, other: tuple[Author, array[int]] | None) -> int:
    if mine is None or other is None or mine[0] is not other[0]:
        return 0
    both = enumerate(zip_longest(mine[1], other[1]))
    return next(at for at, (a, b) in both if a != b)


def twins(pairs: Sequence[Pair]) -> list[tuple[Attempt, Attempt]]:
    """Rollouts of one task, of one number in their groups and of one seed, from both sides; those that have tokens."""
    found: list[tuple[Attempt, Attempt]] = []
    for pair in pairs:
        theirs = {(attempt.key[2], attempt.seed): attempt for attempt in pair.sides[1]}
        both = [(attempt, theirs.get((attempt.key[2], attempt.seed))) for attempt in pair.sides[0]]
        found += [(mine, other) for mine, other in both if other and mine.segments and other.segments]
    return found


def parting_table(pairs: Sequence[tuple[Attempt, Attempt]]) -> Table:
    """How many part where, and by whom."""
    places: dict[tuple[int, str], list[tuple[int, str]]] = defaultdict(list)
    for mine, other in pairs:
        if place := parting(mine.segments, other.segments):
            step, uid, number = mine.key
            places[place.turn, place.author].append((place.token, f"{step}/{uid}/{number}"))
    rows: list[list[Cell]] = [
        [turn, author, len(found), median(token for token, _ in found), *min(found)]
        for (turn, author), found in sorted(places.items())
    ]
    alike = len(pairs) - sum(map(len, places.values()))
    return Table(
        "Rollouts under one seed: where they part",
        ("turn", "by", "rollouts", "median token", "first token", "rollout (step/uid/number)"),
        rows,
        f"{alike:,} of {len(pairs):,} are the same to the end, token for token.",
    )
