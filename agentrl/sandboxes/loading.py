"""Makes a pool of sandboxes from a setting: the name of a kind, or a mapping with `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.config.base import Section
from agentrl.errors import ConfigError
from agentrl.registry import Registry
from agentrl.sandboxes.base import SandboxProvider
from agentrl.sandboxes.pool import SandboxPool


@dataclass(frozen=True, slots=True)
class SandboxKind:
    """A kind of sandboxes.

    Attributes:
        settings: class of its settings, which have at least `max_running`.
        provider: makes the provider from the settings.
    """

    settings: type[Section]
    provider: Any  # Any: called with an instance of `settings`

    def pool(self, options: Mapping[str, object]) -> SandboxPool:
        """Return a pool with these settings."""
        settings: Any = self.settings.model_validate(options)  # Any: a section with `max_running`
        provider: SandboxProvider = self.provider(settings)
        return SandboxPool(provider, settings.max_running)


SANDBOXES: Registry[SandboxKind] = Registry("sandbox", {"local": "agentrl.sandboxes.local.kind:LOCAL"})
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
