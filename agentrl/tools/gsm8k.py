"""A tool that checks the model's answer to a word problem. verl's first multi-turn example uses the same tool."""

from __future__ import annotations

from uuid import uuid4

from pydantic import JsonValue

from agentrl.errors import DataError
from agentrl.tools.base import BaseTool, ToolResponse
from agentrl.types.messages import FunctionSchema, ToolSchema
from agentrl.utils.answers import as_number


class Gsm8kTool(BaseTool):
    """Compares `answer` with the row's `create_kwargs.ground_truth`.

    The tool's reward for the trajectory is 1 if any answer was correct, else 0. Each call except the first correct one
    costs `config.step_penalty` (default 0.05). This discourages repeated guessing.
    """

    deterministic = True
    tool_schema = ToolSchema(
        function=FunctionSchema(
            name="calc_gsm8k_reward",
            description="A tool for calculating the reward of gsm8k. (1.0 if your answer is correct, 0.0 if not)",
            parameters={
                "type": "object",
                "properties": {
                    "answer": {"type": "string", "description": "The answer to the math problem, a number alone."}
                },
                "required": ["answer"],
            },
        )
    )

    def __init__(self, config: dict[str, JsonValue], tool_schema: ToolSchema | None = None) -> None:
        super().__init__(config, tool_schema)
        self._step_penalty = float(str(config.get("step_penalty", 0.05)))
        self._rows: dict[str, tuple[object, float]] = {}  # instance id -> (ground truth, best reward)

    async def create(
        self, instance_id: str | None = None, *, ground_truth: object = None, **kwargs: object
    ) -> tuple[str, ToolResponse]:
        """Store the row's ground truth."""
        if as_number(ground_truth) is None:
            raise DataError(f"create_kwargs.ground_truth must be a number, not {ground_truth!r}")
        instance_id = instance_id or uuid4().hex
        self._rows[instance_id] = (ground_truth, 0.0)
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, JsonValue], **kwargs: object
    ) -> tuple[ToolResponse, float, dict[str, JsonValue]]:
        """Check one answer."""
        ground_truth, best = self._rows[instance_id]
        answer = as_number(parameters["answer"])
        reward = float(answer is not None and answer == as_number(ground_truth))
        self._rows[instance_id] = (ground_truth, max(best, reward))
        penalty = 0.0 if reward > best else -self._step_penalty
        return ToolResponse(f"Current parsed answer={answer} reward={reward}"), penalty, {}

    async def calc_reward(self, instance_id: str, **kwargs: object) -> float:
        """Return the best reward so far."""
        return self._rows[instance_id][1]

    async def release(self, instance_id: str, **kwargs: object) -> None:
        """Drop the row's ground truth and reward."""
        del self._rows[instance_id]
