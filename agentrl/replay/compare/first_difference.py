"""First difference between rollouts of two runs that were sampled with the same seed."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from agentrl.replay.base import Cell, Table
from agentrl.replay.compare.pairs import Attempt, Pair, Segments
from agentrl.types.trajectory import Author


@dataclass(frozen=True, slots=True, order=True)
class FirstDifference:
    """Position of the first token that differs.

    Attributes:
        turn: index, from 0, of the model turn that contains the token. If the token is not from the model: the index of
            the next model turn.
        author: the author of the token.
        token: position of the token in its segment, from 0.
    """

    turn: int
    author: str
    token: int


def first_difference(ours: Segments, theirs: Segments) -> FirstDifference | None:
    """Find the first difference; None if all tokens are the same.

    model [3 4] tool [5] model [6]  and  model [3 4] tool [5] model [7]  differ at turn 1, model, token 0.
    """
    turn = 0
    for mine, other in zip_longest(ours, theirs):
        if mine != other:
            return FirstDifference(turn, (mine or other)[0].value, _first_token(mine, other))
        turn += mine[0].trained
    return None


def _first_token(mine: tuple[Author, array[int]] | None, other: tuple[Author, array[int]] | None) -> int:
    if mine is None or other is None or mine[0] is not other[0]:
        return 0
    both = enumerate(zip_longest(mine[1], other[1]))
    return next(at for at, (a, b) in both if a != b)


def same_seed_pairs(pairs: Sequence[Pair]) -> list[tuple[Attempt, Attempt]]:
    """Return pairs of rollouts, one from each side, that have equal task, number in the group and seed.

    Pairs in which a rollout has no saved tokens are left out.
    """
    found: list[tuple[Attempt, Attempt]] = []
    for pair in pairs:
        theirs = {(attempt.key[2], attempt.seed): attempt for attempt in pair.sides[1]}
        both = [(attempt, theirs.get((attempt.key[2], attempt.seed))) for attempt in pair.sides[0]]
        found += [(mine, other) for mine, other in both if other and mine.segments and other.segments]
    return found


def difference_table(pairs: Sequence[tuple[Attempt, Attempt]]) -> Table:
    """Return a table that counts the pairs that differ, by turn and author of the first difference."""
    places: dict[tuple[int, str], list[tuple[int, str]]] = defaultdict(list)
    for mine, other in pairs:
        if place := first_difference(mine.segments, other.segments):
            step, uid, number = mine.key
            places[place.turn, place.author].append((place.token, f"{step}/{uid}/{number}"))
    rows: list[list[Cell]] = [
        [turn, author, len(found), median(token for token, _ in found), *min(found)]
        for (turn, author), found in sorted(places.items())
    ]
    num_same = len(pairs) - sum(map(len, places.values()))
    return Table(
        "Rollouts with the same seed: first difference",
        ("turn", "author", "rollouts", "median token", "first token", "rollout (step/uid/number)"),
        rows,
        f"{num_same:,} of {len(pairs):,} pairs of rollouts have exactly the same tokens.",
    )
