"""Helpers for tests of tools."""

from __future__ import annotations

import asyncio
import json

from agentrl.chat.base import ParsedCall
from agentrl.tools.base import BaseTool, ToolResponse
from agentrl.tools.toolbox import Toolbox
from agentrl.types.messages import FunctionSchema, ToolSchema
from agentrl.types.task import Task


def schema(name, **properties):
    return ToolSchema(function=FunctionSchema(name=name, parameters={"type": "object", "properties": properties}))


class Recorder(BaseTool):
    """Counts its lifecycle calls; subclasses override one method to misbehave."""

    tool_schema = schema("recorder")

    def __init__(self, config=None):
        super().__init__(config or {})
        self.created, self.released, self.calls, self.kwargs = [], [], [], []

    async def create(self, instance_id=None, **kwargs):
        self.kwargs.append(kwargs)
        self.created.append(instance_id)
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        self.calls.append(instance_id)
        return ToolResponse(f"call {self.calls.count(instance_id)}"), 0.5, {"calls": 1.0}

    async def calc_reward(self, instance_id, **kwargs):
        return float(self.calls.count(instance_id))

    async def release(self, instance_id, **kwargs):
        self.released.append(instance_id)


def call(name, **arguments):
    return ParsedCall(name, json.dumps(arguments))


def task(**fields):
    return Task(messages=[{"role": "user", "content": "q"}], **fields)


def run_calls(tools, *calls, row=None, **options):
    """(results of these calls in one session, the session afterwards)."""

    async def main():
        box = Toolbox(tools, **options)
        async with box.session(row or task()) as session:
            results = [await session.call(each) for each in calls]
        await box.close()
        return results, session

    return asyncio.run(main())


async def until(condition):
    """Wait for another thread or process, however busy the machine is."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
