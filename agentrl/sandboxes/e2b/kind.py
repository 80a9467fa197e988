"""The sandbox kind `e2b`."""

from __future__ import annotations

import os

from agentrl.errors import ConfigError, install_command
from agentrl.sandboxes.base import SandboxProvider
from agentrl.sandboxes.e2b.settings import E2BSandbox
from agentrl.sandboxes.loading import SandboxKind

_CONNECTIONS = "E2B_MAX_CONNECTIONS"
"""The library reads this variable when it is imported; by default it opens at most 200 connections."""


def _provider(settings: E2BSandbox) -> SandboxProvider:
    """Return the provider.

    Raises:
        ConfigError: the library is not installed.
    """
    needed = 3 * settings.max_running  # connections of one sandbox at a time: a call, its health check, a file transfer
    if needed > 200 and not os.environ.get(_CONNECTIONS):
        os.environ[_CONNECTIONS] = str(needed)
    try:
        from agentrl.sandboxes.e2b.provider import E2BProvider  # imported here because the library takes seconds
    except ModuleNotFoundError as error:
        raise ConfigError.keyless(f"sandboxes of kind 'e2b' need {error.name}: {install_command('e2b')}") from error
    return E2BProvider(settings)


E2B = SandboxKind(E2BSandbox, _provider)
