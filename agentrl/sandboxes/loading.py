"""Creates a pool of sandboxes from a setting: the name of a kind, or a mapping with `kind`."""

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
        settings: class of the kind's settings.
        provider: makes the provider from the settings.
        keeps_state: whether a sandbox keeps variables between calls. If not, nothing runs between two calls.
    """

    settings: type[PoolSettings]
    provider: Any  # Any: called with an instance of `settings`
    keeps_state: bool = True

    def pool(self, options: Mapping[str, object]) -> SandboxPool:
        """Return a pool with these settings."""
        settings = self.settings.model_validate(options)
        provider: SandboxProvider = self.provider(settings)
        return SandboxPool(provider, settings)


SANDBOXES: Registry[SandboxKind] = Registry(
    "sandbox",
    {
        "local": "agentrl.sandboxes.local.kind:LOCAL",
        "docker": "agentrl.sandboxes.docker.kind:DOCKER",
        "podman": "agentrl.sandboxes.docker.kind:PODMAN",
        "sandbox_fusion": "agentrl.sandboxes.sandbox_fusion.kind:SANDBOX_FUSION",
        "e2b": "agentrl.sandboxes.e2b.kind:E2B",
    },
)
"""Kinds of sandboxes, by name."""


def pool_of(setting: object) -> SandboxPool:
    """Return a new pool.

    Args:
        setting: the name of a kind ("local"), or a mapping with the key `kind` and the settings of the kind.

    Raises:
        ConfigError: the kind is unknown, or a setting is invalid.
    """
    return kind_of(setting).pool(setting if isinstance(setting, Mapping) else {"kind": setting})


def kind_of(setting: object) -> SandboxKind:
    """Return the kind that a setting names.

    Raises:
        ConfigError: the setting is neither a name nor a mapping with `kind`, or the kind is unknown.
    """
    kind = setting.get("kind") if isinstance(setting, Mapping) else setting
    if not isinstance(kind, str):
        raise ConfigError.keyless(f"'sandbox' must be a name, or a mapping with 'kind', not {setting!r:.100}")
    return SANDBOXES.get(kind)
