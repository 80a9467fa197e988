"""What a file says of how its rollouts were made: the configuration, the tools, and what a row has of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

Json: TypeAlias = Any
"""A JSON value: what a dataset or a model wrote, of any shape."""

LoopKind: TypeAlias = Literal["tool", "react", "single"]

NO_CONFIG = "no configuration was kept"
_BEGUN = re.compile(r"from-turn (\d+) of ")
_LOOPS: Mapping[str, LoopKind] = {
    **dict.fromkeys(("tool_agent", "tool", "tool_agent_loop"), "tool"),
    **dict.fromkeys(("react_agent", "react", "react_agent_loop"), "react"),
    **dict.fromkeys(("single_turn_agent", "single_turn", "single_turn_agent_loop"), "single"),
    "verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop": "tool",
    "verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop": "single",
}


def derived_seed(*parts: int | str) -> int:
    """63 bits of BLAKE2b over the parts as Python writes a tuple of them."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class Known:
    """What is known of a file's rollouts.

    Attributes:
        config: the configuration as plain values; None where none was kept.
        tools: the schemas of all tools as a chat template is told of them; None where they were not kept.
        loops: names of agent loops that the run brought in a file; None where they were not kept.
        replayed_from: for rollouts of a replay, `<mode> of <run>`.
        imported: whether a foreign file was read.
    """

    config: Mapping[str, Json] | None
    tools: Sequence[Json] | None
    loops: Sequence[Json] | None = None
    replayed_from: str | None = None
    imported: bool = False

    @classmethod
    def of(cls, metadata: Mapping[str, str], overrides: Mapping[str, object]) -> Known:
        """What the metadata of a file says; `overrides`, nested keys, say otherwise.

        Raises:
            ValueError: what was kept is no JSON object.
        """
        names = ("config", "tools", "loops")
        kept, tools, loops = (json.loads(metadata.get(f"provenance.{name}", "null")) for name in names)
        if (
            not isinstance(kept, dict | None)
            or not isinstance(tools, list | None)
            or not isinstance(loops, list | None)
        ):
            raise ValueError("the configuration that was kept is no object, or tools or loops are no list")
        if not all(isinstance(tool, dict) and isinstance(_name(tool), str) for tool in tools or []):
            raise ValueError("a tool that was kept has no name")
        config = _laid_over(kept or {}, overrides) if kept or overrides else None
        imported = "provenance.imported_from" in metadata
        return cls(config, tools, loops, metadata.get("provenance.replayed_from"), imported)

    def get(self, key: str) -> Json:
        """The value of `rollout.n` and the like; None where it is not known, or null."""
        if key not in self._looked_up:  # asked of every rollout
            value: Json = self.config
            for name in key.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            self._looked_up[key] = value
        return self._looked_up[key]

    @cached_property
    def _looked_up(self) -> dict[str, Json]:
        return {}

    def number(self, key: str) -> float | None:
        """The same of a key that holds a number."""
        value = self.get(key)
        return value if isinstance(value, int | float) else None

    def limit(self, name: str) -> int | None:
        """A limit of `rollout.multi_turn`."""
        value = self.number(f"rollout.multi_turn.{name}")
        return None if value is None else int(value)

    @cached_property
    def mode(self) -> str:
        """The run's mode."""
        return str(self.get("trainer.mode") or "train")

    @cached_property
    def why_not_run(self) -> str:
        """Why it is not known what the run that was configured would have done; "" where it is."""
        if self.replayed_from:
            return f"replayed, {self.replayed_from}"
        return NO_CONFIG if self.config is None else ""

    @cached_property
    def begun_at(self) -> int | None:
        """The model turn that a replay went on from: turns before it were given; None where all was rolled out."""
        begun = _BEGUN.match(self.replayed_from or "")
        return int(begun[1]) if begun else None

    @cached_property
    def unscored(self) -> bool:
        """Whether rollouts were to have no score; a replay may bring a reward that the run had not."""
        return self.get("reward.name") == "none" and not self.replayed_from

    @cached_property
    def has_user(self) -> bool:
        """Whether simulated users were configured."""
        return bool(self.get("rollout.multi_turn.interaction_config_path"))

    def loop(self, agent_name: str | None) -> tuple[LoopKind | None, str]:
        """Which built-in agent loop a row took; None and why where that is not known."""
        if self.config is None:
            return None, NO_CONFIG
        name = agent_name or self.get("rollout.agent.default_agent_loop")
        if self.loops is None and self.get("rollout.agent.agent_loop_config_path"):
            return None, "which agent loops agent_loop_config_path names was not kept"
        if name in (self.loops or ()) or name not in _LOOPS:
            return None, f"agent loop '{name}' is not built in"
        return _LOOPS[name], ""

    def options(self, extra_info: Json) -> RowOptions:
        """What a row says of its tools."""
        said = extra_info if isinstance(extra_info, dict) else {}
        own = said.get("tool_config")
        own = own if isinstance(own, dict) else {}
        chosen = said.get("tool_selection")  # an empty one chooses no tool
        chosen = own.get("available_tools") if chosen is None else chosen
        names = [chosen] if isinstance(chosen, str) else chosen
        tools = self.tools or []
        if isinstance(names, list):
            by_name = {_name(tool): tool for tool in tools}
            tools = [by_name[name] for name in names if isinstance(name, str) and name in by_name]
        limit = own.get("max_tool_calls")
        return RowOptions(
            tools,
            str(own.get("tool_format") or self.get("rollout.multi_turn.format")),
            limit if isinstance(limit, int) else self.limit("max_tool_calls"),
        )


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The tools a row is offered, how calls are written, and how many there may be."""

    tools: Sequence[Json]
    call_format: str
    max_tool_calls: int | None

    @property
    def names(self) -> set[str]:
        """The tools' names."""
        return set(map(_name, self.tools))


def _name(tool: Json) -> Json:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _laid_over(under: Mapping[str, Json], over: Mapping[str, object]) -> dict[str, Json]:
    result = dict(under)
    for name, value in over.items():
        below = result.get(name)
        nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[name] = _laid_over(below or {}, value) if nested and isinstance(value, Mapping) else value
    return result
