"""The quickstart's calculator as an unreliable service: a random share of its calls raises `InfraError`."""

from __future__ import annotations

from random import Random

from agentrl.registry import load_object
from agentrl.tools.base import BaseTool, InfraError, ToolResponse
from agentrl.tools.function import as_tool
from agentrl.utils.shipped import shipped


class FailingCalculator(BaseTool):
    """Configuration: `rate`, the share of calls that fail. The rollout's seed determines which calls fail."""

    deterministic = True

    def __init__(self, config, tool_schema=None):
        self.calculator = as_tool(load_object(f"{shipped('examples/calculator/tool.py')}:calculator"))
        super().__init__(config, self.calculator.schema)
        self.rate = float(config["rate"])

    async def create(self, instance_id=None, *, agent_data=None, **kwargs):
        instance_id, answer = await super().create(instance_id)
        self.__dict__.setdefault("draws", {})[instance_id] = Random(agent_data.seed)
        return instance_id, answer

    async def execute(self, instance_id, parameters, **kwargs):
        if self.draws[instance_id].random() < self.rate:
            raise InfraError("the calculator's service does not answer")
        return ToolResponse(text=self.calculator.function(**parameters)), 0.0, {}

    async def release(self, instance_id, **kwargs):
        self.draws.pop(instance_id, None)
