"""A table of verl's keys, and finding a key in it; the one of its PPO trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from agentrl.compat.verl_keys.actor import ACTOR, OPTIM, REF
from agentrl.compat.verl_keys.adjust import adjust
from agentrl.compat.verl_keys.algorithm import ALGORITHM
from agentrl.compat.verl_keys.critic import CRITIC
from agentrl.compat.verl_keys.data import DATA, MODEL
from agentrl.compat.verl_keys.draft import Draft
from agentrl.compat.verl_keys.reward import REWARD
from agentrl.compat.verl_keys.rollout import SAMPLING, SERVING, TURNS
from agentrl.compat.verl_keys.rows import UNSET, Mapped, Row
from agentrl.compat.verl_keys.trainer import TRAINER
from agentrl.config.validate import config_fields


class KeyTable:
    """The keys of one of verl's programs.

    Attributes:
        rows: one a key.
        base: verl's own YAML file of these keys, without its ending.
        adjust: brings values into line with each other, as the program would.
        by_key, defaults: the rows, and verl's defaults that are applied, by key.
    """

    def __init__(self, rows: Sequence[Row], base: str, adjust: Callable[[Draft], None] = lambda draft: None) -> None:
        self.rows = tuple(rows)
        self.base = base
        self.adjust = adjust
        self.by_key = {row.key: row for row in rows}
        self.defaults = {row.key: row.default for row in rows if isinstance(row, Mapped) and row.default is not UNSET}

    def find(self, key: str) -> Row | None:
        """The row of a verl key: its own, else that of the nearest `x.*` above it; a key of ours is mapped to itself.

        None where there is no such key.
        """
        if key in self.by_key:
            return self.by_key[key]
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            if row := self.by_key.get(".".join(parts[:length]) + ".*"):
                return row
        return Mapped(key, key) if key in own_keys() else None

    def targets(self, key: str) -> frozenset[str]:
        """agentrl's keys that a verl key sets; none where it is no mapped one."""
        row = self.find(key)
        return frozenset(row.names) if isinstance(row, Mapped) else frozenset()

    def is_leaf(self, key: str) -> bool:
        """Whether a mapping given for `key` is its value, and not a section of further keys."""
        return isinstance(self.by_key.get(key), Mapped) or key in own_keys()


@cache
def own_keys() -> frozenset[str]:
    """agentrl's keys: those that verl does not have may be said too."""
    return frozenset(key for key, _ in config_fields())


PPO = KeyTable(
    (*DATA, *MODEL, *ACTOR, *OPTIM, *REF, *SAMPLING, *TURNS, *SERVING, *ALGORITHM, *CRITIC, *REWARD, *TRAINER),
    "ppo_trainer",
    adjust,
)
