"""The configuration: every default once, every key documented, every mistake named."""

from agentrl.config.run import RunConfig
from agentrl.config.validate import validate_config

__all__ = ["RunConfig", "validate_config"]
