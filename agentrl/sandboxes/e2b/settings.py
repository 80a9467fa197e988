"""Settings of E2B sandboxes."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from agentrl.config.uses import ADDRESS, Text
from agentrl.sandboxes.settings import PoolSettings, Setups


class E2BSandbox(PoolSettings):
    """A sandbox of E2B."""

    kind: Literal["e2b"] = "e2b"
    template: Text = "code-interpreter-v1"
    """Template of the sandbox. It must contain E2B's code interpreter."""
    api_key_env: Annotated[str, ADDRESS] = "E2B_API_KEY"
    """Environment variable that contains the API key."""
    domain: Annotated[str, ADDRESS] | None = None
    """Domain of your own E2B server; null: the variable E2B_DOMAIN, else e2b.app."""
    api_url: Annotated[str, ADDRESS] | None = None
    """Address of the API, if it is not https://api.DOMAIN."""
    sandbox_url: Annotated[str, ADDRESS] | None = None
    """Address of a proxy through which all sandboxes are reached. The proxy must route on the header E2b-Sandbox-Id."""
    internet: bool = False
    """Whether code in the sandbox can reach the internet."""
    lifetime_s: PositiveInt = 3600
    """Seconds until the service ends a sandbox, even if a killed run left it behind."""
    max_running: PositiveInt = 20
    """Maximum number of sandboxes at a time; further rollouts wait. E2B's plans allow 20 (Hobby) or 100 (Pro)."""
    starts_per_s: PositiveFloat | None = 1.0
    """Maximum starts per second of all runs of this user on this machine; null: no limit. E2B's plans allow 1 (Hobby)
    or 5 (Pro)."""
    usd_per_hour: NonNegativeFloat = 0.1332
    """Price of a sandbox per hour, US dollars. Default: E2B's price for its default template. 0: no costs."""

    @model_validator(mode="before")
    @classmethod
    def _no_key(cls, values: Any) -> Any:  # Any: unchecked content of the file
        if isinstance(values, dict) and "api_key" in values:
            raise ValueError("a key does not belong in a file: set the environment variable E2B_API_KEY")
        return values

    @property
    def setups(self) -> Setups:
        """See `PoolSettings.setups`."""
        return "system"

    @property
    def usd_per_s(self) -> float:
        """See `PoolSettings.usd_per_s`."""
        return self.usd_per_hour / 3600

    @property
    def service(self) -> str:
        """See `PoolSettings.service`: E2B's limits apply per account."""
        place = self.api_url or self.domain or os.environ.get("E2B_API_URL") or os.environ.get("E2B_DOMAIN")
        return f"e2b {place} {os.environ.get(self.api_key_env)}"
