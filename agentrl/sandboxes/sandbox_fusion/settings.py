"""Settings of a Sandbox Fusion server."""

from __future__ import annotations

import os
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import PositiveInt

from agentrl.config.uses import ADDRESS
from agentrl.errors import ConfigError
from agentrl.sandboxes.settings import PoolSettings

VARIABLE = "SANDBOX_FUSION_ENDPOINT"


class FusionSandbox(PoolSettings):
    """A Sandbox Fusion server."""

    kind: Literal["sandbox_fusion"] = "sandbox_fusion"
    url: Annotated[str, ADDRESS] | None = None
    """Address of the server, with or without /run_code. Default: the environment variable SANDBOX_FUSION_ENDPOINT."""
    memory_mb: PositiveInt = 1024
    """Maximum memory of each process in MiB."""
    max_concurrent: PositiveInt = 64
    """Maximum number of concurrent requests; further requests wait."""

    max_running: PositiveInt = 1024
    """Maximum number of rollouts that have a sandbox at the same time. It can be large, because nothing runs on the
    server between two calls."""

    def address(self) -> str:
        """Return the address of the server without a path to an endpoint.

        Raises:
            ConfigError: there is no address, or it is invalid.
        """
        found = self.url or os.environ.get(VARIABLE)
        if not found:
            raise ConfigError.keyless(f"sandboxes of kind 'sandbox_fusion' need 'url', or the variable {VARIABLE}")
        if urlsplit(found).scheme not in ("http", "https"):
            raise ConfigError.keyless(f"the address of Sandbox Fusion must begin with http:// or https://: '{found}'")
        return found.rstrip("/").removesuffix("/run_code")
