"""The tool: something the model may call, with verl's lifecycle create / execute / calc_reward / release."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from pydantic import JsonValue

from agentrl.messages import ToolSchema


class ToolError(Exception):
    """A tool says that this call failed; its text is shown to the model, the outcome is `tool_error`."""


class InfraError(Exception):
    """The world around a tool or a rollout failed, such as a service that is down: outcome `infra_error`."""


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What a tool answers: text, and images for models that see.

    An image is bytes of a file, a path, a data URL or a Pillow image. Videos are refused in this version.
    """

    text: str | None = None
    image: list[object] | None = None
    video: list[object] | None = None


class BaseTool:
    """A tool. Subclass it and write `execute`; the rest has sensible defaults.

    One instance serves all rollouts. `create` is called once a trajectory, before its first call, so what a tool
    keeps under `instance_id` lasts over the calls of that trajectory; `release` is always called, also when the
    rollout is aborted.
    """

    tool_schema: ToolSchema
    """What the model is told; given here, in `__init__`, or by overriding `get_openai_tool_schema`."""

    def __init__(self, config: dict[str, JsonValue], tool_schema: ToolSchema | None = None) -> None:
        self.config = config
        if tool_schema is not None:
            self.tool_schema = tool_schema
        self.tool_schema = self.get_openai_tool_schema()
        self.name = self.tool_schema.name

    def get_openai_tool_schema(self) -> ToolSchema:
        """What the model is told."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: object) -> tuple[str, ToolResponse]:
        """Begin for one trajectory; `kwargs` are the row's `create_kwargs`, splatted and also under that name."""
        return instance_id or uuid4().hex, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, JsonValue], **kwargs: object
    ) -> tuple[ToolResponse, float, dict[str, JsonValue]]:
        """Serve one call: (answer, reward of this call, metrics). Raise `ToolError` to answer with a failure."""
        raise NotImplementedError(f"{type(self).__name__} must define execute")

    async def calc_reward(self, instance_id: str, **kwargs: object) -> float:
        """The tool's own reward for the whole trajectory."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: object) -> None:
        """End for one trajectory."""
