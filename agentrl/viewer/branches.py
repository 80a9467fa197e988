"""Tree of a rollout's trajectories: which trajectory continues another, and which was started by another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypedDict

from agentrl.types.operation import Operation, OperationKind
from agentrl.types.rollout import Rollout

_CONTINUES = (OperationKind.RESTART, OperationKind.RENDER)
_MAX_DEPTH = 8
"""Maximum level in the tree; trajectories that are nested more deeply get this level, too."""


class Branch(TypedDict):
    """The place of a trajectory in the tree.

    Attributes:
        number: position of the trajectory in the rollout.
        kind: how the trajectory was opened, see `OperationKind`; "" if this is not known.
        parent: the trajectory that this trajectory continues, or that started it; None at the top of the tree.
        turn: the parent's model turn (from 0) that started this trajectory; None if no turn is recorded.
        segment: index of that turn's segment in the parent.
        depth: level in the tree. A trajectory that continues another has the same level.
        weight: factor of the trajectory's advantages; 0 for a trajectory that is not trained on, such as a discarded
            answer.
        remark: a note by the program that made the rollout, such as why an answer was discarded.
    """

    number: int
    kind: str
    parent: int | None
    turn: int | None
    segment: int | None
    depth: int
    weight: float
    remark: str


def branches(rollout: Rollout) -> list[Branch]:
    """Return the trajectories in the order of the tree: each is followed by the trajectories that it started.

    Parents that do not exist or form a cycle are ignored. Only a file that another program wrote has such parents.
    """
    found = _opened(rollout)
    children: dict[int | None, list[Branch]] = {}
    for branch in found:
        children.setdefault(branch["parent"], []).append(branch)
    ordered = _from_top(children)
    left = {branch["number"] for branch in found} - {branch["number"] for branch in ordered}
    lost = [_at_top(branch) for branch in found if branch["number"] in left]  # in cycles
    return [*ordered, *lost]


def _from_top(children: dict[int | None, list[Branch]]) -> list[Branch]:
    """Return the trajectories that can be reached from the top, in the order of the tree, with their levels."""
    ordered: list[Branch] = []
    waiting = [(branch, 0) for branch in reversed(_sorted(children.get(None, [])))]
    while waiting:  # no recursion: a chain of restarts may be long
        branch, level = waiting.pop()
        branch["depth"] = min(level, _MAX_DEPTH)
        ordered.append(branch)
        own = _sorted(children.get(branch["number"], []))
        waiting += [(each, level + (each["kind"] not in _CONTINUES)) for each in reversed(own)]
    return ordered


def _sorted(branches: Sequence[Branch]) -> list[Branch]:
    """Sort trajectories of one parent: those that the parent started come before those that continue the parent."""
    return sorted(branches, key=lambda each: (each["kind"] in _CONTINUES, each["segment"] or 0, each["number"]))


def _opened(rollout: Rollout) -> list[Branch]:
    opening = {each.trajectory: each for each in reversed(rollout.operations)}  # each trajectory's first operation
    return [_branch(rollout, number, opening.get(number)) for number in range(len(rollout.trajectories))]


def _branch(rollout: Rollout, number: int, opening: Operation | None) -> Branch:
    parent, segment = opening.parent if opening else (None, None)
    if parent == number or parent not in range(len(rollout.trajectories)):
        parent = segment = None
    turn = None
    if parent is not None and segment is not None:
        turn = sum(each.author.trained for each in rollout.trajectories[parent].segments[: max(0, segment)])
    return {
        "number": number,
        "kind": str(opening.kind) if opening else "",
        "parent": parent,
        "turn": turn,
        "segment": segment,
        "depth": 0,
        "weight": rollout.trajectories[number].weight,
        "remark": _remark(opening) if opening else "",
    }


def _at_top(branch: Branch) -> Branch:
    return {**branch, "parent": None, "turn": None, "segment": None}


def _remark(opening: Operation) -> str:
    try:
        facts = json.loads(opening.detail or "{}")
    except (ValueError, RecursionError):
        return ""
    remark = facts.get("remark", "") if isinstance(facts, dict) else ""
    return remark if isinstance(remark, str) else ""
