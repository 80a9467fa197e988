"""Converts verl's entry for a Sandbox Fusion tool to the tool `python` in a sandbox of the kind `sandbox_fusion`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import PositiveFloat, PositiveInt

from agentrl.config.base import Section
from agentrl.config.uses import ADDRESS
from agentrl.errors import ConfigError
from agentrl.sandboxes.pool import SandboxPool
from agentrl.tools.sandbox_tools import PYTHON, SandboxTool
from agentrl.types.messages import ToolSchema
from agentrl.utils.yaml_list import check_keys


class _Config(Section):
    type: Literal["native"] = "native"
    sandbox_fusion_url: Annotated[str, ADDRESS]
    default_timeout: PositiveFloat = 30.0
    default_language: Literal["python"] = "python"
    memory_limit_mb: PositiveInt = 1024
    rate_limit: PositiveInt = 10
    num_workers: PositiveInt = 10
    enable_global_rate_limit: bool = True


class _Entry(Section):
    class_name: str
    config: _Config
    tool_schema: ToolSchema | None = None


def fusion_tool(entry: Mapping[str, object], pools: dict[str, SandboxPool]) -> SandboxTool:
    """Return the tool, with the entry's `tool_schema` if the entry has this key.

    verl's key `rate_limit` is the maximum number of concurrent requests.

    Raises:
        ConfigError: a key is unknown, or the schema has no parameter `code`.
    """
    check_keys(entry, _Entry.model_fields)
    given = _Entry.model_validate(entry)
    config = given.config
    sandbox = {
        "kind": "sandbox_fusion",
        "url": config.sandbox_fusion_url,
        "memory_mb": config.memory_limit_mb,
        "max_concurrent": config.rate_limit,
    }
    tool = PYTHON.tool({"name": PYTHON.name, "sandbox": sandbox, "timeout_s": config.default_timeout}, pools)
    if given.tool_schema is None:
        return tool
    properties = given.tool_schema.function.parameters.get("properties")
    if not isinstance(properties, dict) or "code" not in properties:
        raise ConfigError.keyless("'tool_schema' needs the parameter 'code'")
    return replace(tool, schema=given.tool_schema)
