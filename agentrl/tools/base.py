"""Base class of tools, with verl's lifecycle create / execute / calc_reward / release."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from pydantic import JsonValue

from agentrl.types.messages import ToolSchema


class ToolError(Exception):
    """Raised by a tool if the model can see the failure and try something else; the outcome is `tool_error`.

    Examples: nothing was found, the code raised an exception, a value is not allowed. The rollout continues and is
    trained on. The model gets the text with the prefix `Error: `, which is added if it is missing.
    """


class InfraError(Exception):
    """Raised if a failure does not depend on the policy; the outcome is `infra_error`.

    Examples: a service is down, a quota is used up, a sandbox could not start. The call is first
    repeated, up to as many times as the tool's option `retries` says (default 0). If the call still fails, the rollout
    ends. The rollout is saved, but excluded from training and from most metrics. Do not raise `InfraError` for a
    failure that the model can cause, such as a crash of code that the model wrote, because the policy would not learn
    to avoid such failures.
    """


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """Answer of a tool: text, and images for models that accept images.

    An image is a path, a data URL, a Pillow image, or the bytes of an image file. Videos are not supported in this
    version.
    """

    text: str | None = None
    image: list[object] | None = None
    video: list[object] | None = None


class BaseTool:
    """Base class of a tool. Subclass it and implement `execute`; all other methods have defaults.

    One instance serves all rollouts. `create` is called once per trajectory, before the first call. State that a tool
    stores under `instance_id` is available to all calls of that trajectory. `release` is called for each instance that
    `create` returned, also when the rollout is aborted.

    `execute`, `calc_reward` and `release` receive `agent_data` as a keyword. `create` receives `agent_data` only if its
    signature names it. A method whose signature names `seed` receives the rollout's seed, for reproducible random
    numbers.

    `agent_data` has the task, the messages, and `request_id`, which all tools of one rollout share. Tools can share
    state by storing it under `agent_data.request_id`. Tools of a rollout are released concurrently, so remove shared
    state with `.pop(request_id, None)`.
    """

    tool_schema: ToolSchema
    """Schema that the model sees; set it in the class, in `__init__`, or by overriding `get_openai_tool_schema`."""
    deterministic: bool = False
    """Whether the same calls return the same answers. If not, the run is not guaranteed to be reproducible."""

    def __init__(self, config: dict[str, JsonValue], tool_schema: ToolSchema | None = None) -> None:
        self.config = config
        if tool_schema is not None:
            self.tool_schema = tool_schema
        self.tool_schema = self.get_openai_tool_schema()
        self.name = self.tool_schema.name

    def get_openai_tool_schema(self) -> ToolSchema:
        """Return the schema that the model sees."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: object) -> tuple[str, ToolResponse]:
        """Start one trajectory.

        `kwargs` contains the row's dictionary `create_kwargs`. It also contains each entry of this dictionary as a
        separate keyword. If `create` raises an `InfraError`, only this rollout is dropped. Any other exception counts
        as an error of the row and ends the run.
        """
        return instance_id or uuid4().hex, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, JsonValue], **kwargs: object
    ) -> tuple[ToolResponse, float, dict[str, JsonValue]]:
        """Run one call and return (answer, reward of this call, metrics). Raise `ToolError` if the call fails."""
        raise NotImplementedError(f"{type(self).__name__} must define execute")

    async def calc_reward(self, instance_id: str, **kwargs: object) -> float:
        """Return the tool's own reward for the trajectory."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: object) -> None:
        """Free the resources of one trajectory."""
