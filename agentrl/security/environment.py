"""`${oc.env:NAME}` in a configuration: the value is treated as a secret, with the exceptions in `remember_secret`."""

from __future__ import annotations

from agentrl.security.redaction import remember_secret


def remember_environment() -> None:
    """Make OmegaConf's resolver of environment variables register its values as secrets. Can be called repeatedly."""
    from omegaconf import OmegaConf  # imported here because it is slow to import
    from omegaconf.resolvers import oc

    def env(*arguments: str) -> str | None:
        value: str | None = oc.env(*arguments)
        if value is not None:
            remember_secret(value)
        return value

    OmegaConf.register_new_resolver("oc.env", env, replace=True)
