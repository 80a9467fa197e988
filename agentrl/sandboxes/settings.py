"""Settings that all kinds of sandboxes have: how many run, and how fast they start."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.config.base import Section

Setups = Literal["image", "folders", "system"]
"""Which settings of a `SandboxSetup` a kind supports. image: another image than the kind's. folders: additional folders
and environment variables. system: the same as folders, and programs in the sandbox can write every file."""


class PoolSettings(Section):
    """Number and rate of sandboxes."""

    kind: str = ""
    """Name of the kind."""
    max_running: PositiveInt = 64
    """Maximum number of sandboxes at a time; further rollouts wait."""
    prewarm: NonNegativeInt = 0
    """Number of sandboxes that are started before a rollout needs them. They count towards max_running."""
    starts_per_s: PositiveFloat | None = None
    """Maximum starts per second of all runs of this user on this machine; null: no limit."""

    @property
    def setups(self) -> Setups | None:
        """Which settings of a `SandboxSetup` are supported; None: none."""
        return None

    def lacking(self) -> str:
        """Return which requirement this machine lacks, if this is known without starting a sandbox; else ""."""
        return ""

    @property
    def usd_per_s(self) -> float:
        """Price of a second of one sandbox, in US dollars; 0 if it costs nothing."""
        return 0.0

    @property
    def service(self) -> str:
        """Name of the service that `starts_per_s` protects: processes with the same service share the limit."""
        return type(self).__name__
