"""The configuration: keys, defaults, documentation and validation."""

from agentrl.config.run import RunConfig
from agentrl.config.validate import validate_config

__all__ = ["RunConfig", "validate_config"]
