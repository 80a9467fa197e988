"""The one table of verl's keys, and finding a key in it."""

from __future__ import annotations

from functools import cache

from agentrl.compat.verl_keys.actor import ACTOR, OPTIM, REF
from agentrl.compat.verl_keys.algorithm import ALGORITHM, REWARD
from agentrl.compat.verl_keys.data import DATA, MODEL
from agentrl.compat.verl_keys.rollout import SAMPLING, SERVING, TURNS
from agentrl.compat.verl_keys.rows import UNSET, Mapped, Row
from agentrl.compat.verl_keys.trainer import TRAINER
from agentrl.config.validate import config_fields

ROWS: tuple[Row, ...] = (
    *(*DATA, *MODEL, *ACTOR, *OPTIM, *REF, *SAMPLING, *TURNS, *SERVING, *ALGORITHM, *REWARD, *TRAINER),
)
BY_KEY = {row.key: row for row in ROWS}
DEFAULTS = {row.key: row.default for row in ROWS if isinstance(row, Mapped) and row.default is not UNSET}


def find(key: str) -> Row | None:
    """The row of a verl key: its own, else that of the nearest `x.*` above it; an agentrl key is mapped to itself."""
    if key in BY_KEY:
        return BY_KEY[key]
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if row := BY_KEY.get(".".join(parts[:length]) + ".*"):
            return row
    return Mapped(key, key) if key in own_keys() else None


def targets(key: str) -> frozenset[str]:
    """agentrl's keys that a verl key sets; none where it is no mapped one."""
    row = find(key)
    return frozenset(row.names) if isinstance(row, Mapped) else frozenset()


def is_leaf(key: str) -> bool:
    """Whether a mapping given for `key` is its value, and not a section of further keys."""
    return isinstance(BY_KEY.get(key), Mapped) or key in own_keys()


@cache
def own_keys() -> frozenset[str]:
    """agentrl's keys: those that verl does not have may be said too."""
    return frozenset(key for key, _ in config_fields())
