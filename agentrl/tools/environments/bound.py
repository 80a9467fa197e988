"""Binds an environment for the toolbox: one tool per method, and one object per rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from agentrl.concurrency import MAX_ABANDONED, CircuitBreaker, Offload
from agentrl.errors import DataError
from agentrl.tools.binding import AgentData, BindsSeveral, BoundTool, RolloutState, ToolInstance, invalid_arguments
from agentrl.tools.environments import reset_arguments
from agentrl.tools.environments.episode import Episode
from agentrl.tools.environments.spec import EnvironmentSpec
from agentrl.tools.function import FunctionTool
from agentrl.tools.result import Answer
from agentrl.types.task import Task


@dataclass(frozen=True, slots=True)
class Environment(BindsSeveral):
    """The tools of an environment class."""

    spec: EnvironmentSpec

    def bound(self, deadline_s: float, offload: Offload) -> Sequence[BoundTool]:
        """Return one tool per method."""
        environment = BoundEnvironment(self.spec, deadline_s, offload)
        return [BoundMethod(environment, tool) for tool in self.spec.tools.values()]


class BoundEnvironment:
    """An environment class with the run's timeout and threads. It opens an `Episode` for each rollout."""

    def __init__(self, spec: EnvironmentSpec, deadline_s: float, offload: Offload) -> None:
        self.spec, self.name = spec, spec.name
        self.deadline_s, self.offload = deadline_s, offload
        self.breaker = CircuitBreaker(f"environment '{spec.name}'")
        # a separate circuit breaker, so that objects are still closed when other calls hang
        self.release_breaker = CircuitBreaker(f"close of environment '{spec.name}'", max_in_row=MAX_ABANDONED)

    def open(self, data: AgentData) -> RolloutState:
        """Return the environment of a rollout, not yet started."""
        return Episode(self, data)

    def check_row(self, task: Task) -> None:
        """Reject a row without the arguments that `reset` needs."""
        reset_arguments.check_row(self.spec, task)


class BoundMethod(BoundTool):
    """A method of an environment as a tool."""

    def __init__(self, environment: BoundEnvironment, tool: FunctionTool) -> None:
        super().__init__(tool.schema, environment.deadline_s, environment.offload)
        self.deterministic = environment.spec.deterministic
        self.state: BoundEnvironment = environment
        self.tool = tool

    def instance(self, data: AgentData) -> ToolInstance:
        """Return the method of the rollout's object."""
        episode = data.states[self.state]
        assert isinstance(episode, Episode)  # opened by `self.state`
        return _Method(self, episode)

    def check_row(self, given: Mapping[str, JsonValue]) -> None:
        """Reject arguments of the row, because the arguments of a method come only from the model."""
        if given:
            name = self.state.name
            raise DataError(
                f"field 'tools_kwargs.{self.name}': '{self.name}' is a method of environment '{name}', and only reset"
                f" gets arguments of the row: write tools_kwargs.{name}.create_kwargs"
            )


class _Method(ToolInstance):
    def __init__(self, bound: BoundMethod, episode: Episode) -> None:
        self._bound, self._episode = bound, episode

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        bound = self._bound
        try:
            converted = bound.tool.bind(arguments)
        except ValidationError as error:
            raise invalid_arguments(bound.name, error) from None
        return await self._episode.call_method(bound.name, converted, bound.deadline_s, bound.breaker)
