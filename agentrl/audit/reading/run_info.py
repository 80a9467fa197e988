"""Metadata of a file of rollouts: configuration, tools, and the options of single rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

Json: TypeAlias = Any
"""A JSON value of any shape, written by a dataset or a model."""

LoopKind: TypeAlias = Literal["tool", "react", "single", "own"]
"""Built-in agent loops, and `own`: a loop whose rollouts are read from the operations of its conversations."""

NO_CONFIG = "no saved configuration"
_CONTINUED = re.compile(r"from-turn (\d+) of ")
_LOOPS: Mapping[str, LoopKind] = {
    **dict.fromkeys(("tool_agent", "tool", "tool_agent_loop"), "tool"),
    **dict.fromkeys(("react_agent", "react", "react_agent_loop"), "react"),
    **dict.fromkeys(("single_turn_agent", "single_turn", "single_turn_agent_loop"), "single"),
    "verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop": "tool",
    "verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop": "single",
}


def derived_seed(*parts: int | str) -> int:
    """Return a seed: 63 bits of the BLAKE2b hash of `repr(parts)`."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class RunInfo:
    """Metadata of a file's rollouts.

    Attributes:
        config: the configuration as plain values; None if it was not saved.
        tools: schemas of all tools, as passed to the chat template; None if they were not saved.
        loops: names of the custom agent loops in the run's configuration file; None if they were not saved.
        replayed_from: for rollouts of a replay, `<mode> of <run>`.
        imported: whether the rollouts were imported from a file of another framework.
        environment: name of the environment; "" if there is none.
    """

    config: Mapping[str, Json] | None
    tools: Sequence[Json] | None
    loops: Sequence[Json] | None = None
    replayed_from: str | None = None
    imported: bool = False
    environment: str = ""

    @classmethod
    def of(cls, metadata: Mapping[str, str], overrides: Mapping[str, object]) -> RunInfo:
        """Read the metadata of a file. The nested keys in `overrides` replace saved values.

        Raises:
            ValueError: the metadata is not valid JSON, or has the wrong type.
        """
        names = ("config", "tools", "loops")
        try:
            saved, tools, loops = (json.loads(metadata.get(f"provenance.{name}", "null")) for name in names)
        except RecursionError:
            raise ValueError("saved metadata is nested too deeply") from None
        if (
            not isinstance(saved, dict | None)
            or not isinstance(tools, list | None)
            or not isinstance(loops, list | None)
        ):
            raise ValueError(
                "the saved configuration is not an object, or the saved tools or agent loops are not a list"
            )
        if not all(isinstance(tool, dict) and isinstance(tool_name(tool), str) for tool in tools or []):
            raise ValueError("a saved tool has no name")
        config = _merged(saved or {}, overrides) if saved or overrides else None
        imported = "provenance.imported_from" in metadata
        replayed_from, environment = metadata.get("provenance.replayed_from"), metadata.get("provenance.environment")
        return cls(config, tools, loops, replayed_from, imported, environment or "")

    def get(self, key: str) -> Json:
        """Return the value of a dotted key, such as `rollout.n`; None if it is missing or null."""
        if key not in self._looked_up:  # cached, because `get` is called for every rollout
            value: Json = self.config
            for name in key.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            self._looked_up[key] = value
        return self._looked_up[key]

    @cached_property
    def _looked_up(self) -> dict[str, Json]:
        return {}

    def number(self, key: str) -> float | None:
        """Return the value of a dotted key; None if it is not a number."""
        value = self.get(key)
        return value if isinstance(value, int | float) else None

    def limit(self, name: str, *, of_agent: bool = False) -> int | None:
        """Return a limit of `rollout.multi_turn`; with `of_agent`, the sub-agents' own limit if set. None: no limit."""
        own = self.number(f"rollout.multi_turn.sub_agent.{name}") if of_agent else None
        value = self.number(f"rollout.multi_turn.{name}") if own is None else own
        return None if value is None else int(value)

    def request(self, agent_name: str | None) -> Json:
        """Return the message that asks for a summary; None if the agent loop of a row does not ask for summaries."""
        text = self.get("rollout.multi_turn.compaction.instruction")
        return {"role": "user", "content": text} if self._loop_name(agent_name) == "compaction" else None

    def starts_agents(self, agent_name: str | None) -> bool:
        """Whether the agent loop of a row has a tool that starts sub-agents."""
        return bool(self._loop_name(agent_name) == "sub_agent")

    def _loop_name(self, agent_name: str | None) -> Json:
        name = agent_name or self.get("rollout.agent.default_agent_loop")
        return None if name in (self.loops or ()) else name

    @cached_property
    def mode(self) -> str:
        """The run's mode."""
        return str(self.get("trainer.mode") or "train")

    @cached_property
    def why_not_run(self) -> str:
        """Why no saved configuration describes these rollouts: none was saved, or a replay made them; else ""."""
        if self.replayed_from:
            return f"made by replay, {self.replayed_from}"
        return NO_CONFIG if self.config is None else ""

    @cached_property
    def continued_from(self) -> int | None:
        """The model turn from which a replay continued the rollouts; None if they were sampled from the start."""
        found = _CONTINUED.match(self.replayed_from or "")
        return int(found[1]) if found else None

    @cached_property
    def unscored(self) -> bool:
        """Whether the run was configured without a reward. False for a replay, which may use another reward."""
        return self.get("reward.name") == "none" and not self.replayed_from

    @cached_property
    def has_user(self) -> bool:
        """Whether simulated users were configured."""
        return bool(self.get("rollout.multi_turn.interaction_config_path"))

    def loop(self, agent_name: str | None) -> tuple[LoopKind | None, str]:
        """Return the built-in agent loop of a row, or None and the reason why it is unknown."""
        if self.config is None:
            return None, NO_CONFIG
        name = agent_name or self.get("rollout.agent.default_agent_loop")
        if self.loops is None and self.get("rollout.agent.agent_loop_config_path"):
            return None, "the agent loops of agent_loop_config_path were not saved"
        if name in (self.loops or ()) or name not in _LOOPS:
            return None, f"agent loop '{name}' is not built in"
        return _LOOPS[name], ""

    def options(self, extra_info: Json) -> RowOptions:
        """Read a row's tool options."""
        info = extra_info if isinstance(extra_info, dict) else {}
        own = info.get("tool_config")
        own = own if isinstance(own, dict) else {}
        chosen = info.get("tool_selection")  # an empty list selects no tools
        chosen = own.get("available_tools") if chosen is None else chosen
        names = [chosen] if isinstance(chosen, str) else chosen
        tools = self.tools or []
        if isinstance(names, list):
            by_name = {tool_name(tool): tool for tool in tools}
            tools = [by_name[name] for name in names if isinstance(name, str) and name in by_name]
        limit, of_row = own.get("max_tool_calls"), own.get("tool_format")
        return RowOptions(
            tools,
            str(self.get("rollout.multi_turn.format") if of_row in (None, "auto") else of_row),
            limit if isinstance(limit, int) else self.limit("max_tool_calls"),
            _given(info.get("chat_template_kwargs")),
        )


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options of a row: tools, format of calls, maximum number of calls, and variables for the chat template."""

    tools: Sequence[Json]
    call_format: str
    max_tool_calls: int | None
    variables: Mapping[str, Json]

    @property
    def names(self) -> set[str]:
        """The tools' names."""
        return set(map(tool_name, self.tools))


def _given(variables: Json) -> Mapping[str, Json]:
    """The variables that are not null."""
    return {k: v for k, v in variables.items() if v is not None} if isinstance(variables, dict) else {}


def tool_name(tool: Json) -> Json:
    """Return the name in a tool schema; None if there is none."""
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _merged(base: Mapping[str, Json], changes: Mapping[str, object]) -> dict[str, Json]:
    result = dict(base)
    for name, value in changes.items():
        inner = result.get(name)
        nested = isinstance(value, Mapping) and isinstance(inner, Mapping)
        result[name] = _merged(inner or {}, value) if nested and isinstance(value, Mapping) else value
    return result
