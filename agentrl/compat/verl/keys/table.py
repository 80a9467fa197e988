"""Table of verl's keys with lookup, and the table of verl's PPO trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from agentrl.compat.verl.keys.actor import ACTOR, OPTIM, REF
from agentrl.compat.verl.keys.adjust import adjust
from agentrl.compat.verl.keys.algorithm import ALGORITHM
from agentrl.compat.verl.keys.critic import CRITIC
from agentrl.compat.verl.keys.data import DATA, MODEL
from agentrl.compat.verl.keys.draft import Draft
from agentrl.compat.verl.keys.megatron import MEGATRON_ACTOR, MEGATRON_CRITIC, MEGATRON_REF
from agentrl.compat.verl.keys.reward import REWARD
from agentrl.compat.verl.keys.rollout import SAMPLING, SERVING, TURNS
from agentrl.compat.verl.keys.rows import UNSET, Mapped, Row
from agentrl.compat.verl.keys.trainer import TRAINER
from agentrl.config.validate import config_fields


class KeyTable:
    """The keys of a verl program.

    Attributes:
        rows: one row per key.
        base: name of verl's YAML file with these keys, without suffix.
        variants: name of another YAML file of verl with these keys -> the values in which it differs from `base`.
        adjust: function that makes the values consistent with each other, as the verl program does.
        by_key, defaults: rows by key, and verl's defaults by key.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        base: str,
        adjust: Callable[[Draft], None] = lambda draft: None,
        variants: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self.rows = tuple(rows)
        self.base = base
        self.variants = variants or {}
        self.adjust = adjust
        self.by_key = {row.key: row for row in rows}
        self.defaults = {row.key: row.default for row in rows if isinstance(row, Mapped) and row.default is not UNSET}

    def find(self, key: str) -> Row | None:
        """Find the row of a key, or else the nearest `x.*` above the key. An agentrl key maps to itself.

        Return None for an unknown key.
        """
        if key in self.by_key:
            return self.by_key[key]
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            if row := self.by_key.get(".".join(parts[:length]) + ".*"):
                return row
        return Mapped(key, key) if key in own_keys() else None

    def targets(self, key: str) -> frozenset[str]:
        """agentrl's keys that a verl key sets; empty if the key is not mapped."""
        row = self.find(key)
        return frozenset(row.names) if isinstance(row, Mapped) else frozenset()

    def is_leaf(self, key: str) -> bool:
        """Whether a mapping given for `key` is the key's value, not a section of further keys."""
        return isinstance(self.by_key.get(key), Mapped) or key in own_keys()


@cache
def own_keys() -> frozenset[str]:
    """agentrl's keys. A command with verl's keys may also set agentrl's keys that verl does not have."""
    return frozenset(key for key, _ in config_fields())


PPO = KeyTable(
    (
        *(*DATA, *MODEL, *ACTOR, *MEGATRON_ACTOR, *OPTIM, *REF, *MEGATRON_REF, *SAMPLING, *TURNS, *SERVING),
        *(*ALGORITHM, *CRITIC, *MEGATRON_CRITIC, *REWARD, *TRAINER),
    ),
    "ppo_trainer",
    adjust,
    variants={"ppo_megatron_trainer": {"actor_rollout_ref.actor.strategy": "megatron"}},
)
