"""Makes a pool of sandboxes from a setting: the name of a kind, or a mapping with `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError
from agentrl.registry import Registry
from agentrl.sandboxes.base import SandboxProvider
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.settings import PoolSettings


@dataclass(frozen=True, slots=True)
class SandboxKind:
    """A kind of sandboxes.

    Attributes:
        settings: class of its settings.
        provider: makes the provider from the settings.
    """

    settings: type[PoolSettings]
    provider: Any  # Any: called with an instance of `settings`

    def pool(self, options: Mapping[str, object]) -> SandboxPool:
        """Return a pool with these settings."""
        settings = self.settings.model_validate(options)
        provider: SandboxProvider = self.provider(settings)
        return SandboxPool(provider, settings)


SANDBOXES: Registry[SandboxKind] = Registry(
    "sandbox",
    {
        "local": "agentrl.sandboxes.local.kind:LOCAL",
        "e2b": "agentrl.sandboxes.e2b.kind:E2B",
    },
)
"""Kinds of sandboxes, by name."""


def pool_of(setting: object) -> SandboxPool:
    """Return a new pool.

    Args:
        setting: the name of a kind ("local"), or a mapping of `kind` and its settings.

    Raises:
        ConfigError: the kind is unknown, or a setting is invalid.
    """
    options = {"kind": setting} if isinstance(setting, str) else setting
    if not isinstance(options, Mapping) or not isinstance(options.get("kind"), str):
        raise ConfigError.keyless(f"'sandbox' must be a name, or a mapping with 'kind', not {setting!r:.100}")
    return SANDBOXES.get(options["kind"]).pool(options)
