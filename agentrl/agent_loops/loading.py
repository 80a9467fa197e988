"""The agent loops of a run: found by name, checked at the start, built anew for every rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import JsonValue

from agentrl.agent_loops.base import AgentLoop, agent_loops
from agentrl.chat.parsers import tool_parsers
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, UnknownNameError, suggestion

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat


@dataclass(frozen=True, slots=True)
class LoopEntry:
    """One entry of the YAML file: what to build, with which options; `where` names it in errors."""

    target: str
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    where: str = ""


class LoopFactory:
    """Builds agent loops by name, a new one each time: a loop may keep its state on `self`.

    A name is an entry of `rollout.agent.agent_loop_config_path`, or whatever the registry answers to.

    Raises:
        ConfigError, UnknownNameError: the file is wrong, or the default agent loop cannot be built.
    """

    def __init__(self, chat: ChatFormat, config: RunConfig) -> None:
        self._chat = chat
        self._config = config
        path = config.rollout.agent.agent_loop_config_path
        self._entries = read_entries(path) if path else {}
        self._makers: dict[tuple[str, str | None], Callable[[], AgentLoop]] = {}
        self.build(None)

    def build(self, name: str | None, tool_format: str | None = None) -> AgentLoop:
        """A new loop called `name`; None is the default.

        Args:
            tool_format: how the model writes calls, in place of `rollout.multi_turn.format`.

        Raises:
            ConfigError, UnknownNameError: there is none, it does not take its options, or not this format.
        """
        key = (name or self._config.rollout.agent.default_agent_loop, tool_format)
        if key not in self._makers:
            self._makers[key] = self._maker(*key)
        return self._makers[key]()

    def _maker(self, name: str, tool_format: str | None) -> Callable[[], AgentLoop]:
        entry = self._entries.get(name) or LoopEntry(name, where=f"agent loop '{name}'")
        factory = self._find(name, entry)
        own_format = getattr(factory, "tool_format", None)
        if own_format and tool_format not in (None, own_format):
            raise ConfigError(f"{entry.where} works with tool_format '{own_format}', not '{tool_format}'")
        parser = tool_parsers.get(own_format or tool_format or self._config.rollout.multi_turn.format)()
        make = partial(getattr(factory, "as_agent_loop", factory), self._chat, parser, self._config, **entry.options)
        try:
            loop = make()
        except Exception as error:
            raise ConfigError(f"{entry.where}: {type(error).__name__}: {error}") from error
        if not isinstance(loop, AgentLoop):
            raise ConfigError(f"{entry.where}: '{entry.target}' must be a subclass of agentrl.agent_loops.AgentLoop")
        return make

    def _find(self, name: str, entry: LoopEntry) -> Callable[..., AgentLoop]:
        try:
            return agent_loops.get(entry.target)
        except UnknownNameError as error:
            if name in self._entries:
                raise UnknownNameError(f"{entry.where}: {error}") from error
            if self._entries and not {".", ":"} & set(name):
                valid = [*self._entries, *agent_loops.names()]
                raise UnknownNameError(f"unknown agent loop '{name}': {suggestion(name, valid)}") from error
            raise


def read_entries(path: Path) -> dict[str, LoopEntry]:
    """verl's YAML list of `{name, _target_, <options>}`, by name.

    Raises:
        ConfigError: the file cannot be read, or an entry lacks a name or a target; says which.
    """
    try:
        listed = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        problem = " ".join(str(error).replace('"<unicode string>"', f"'{path}'").split())
        raise ConfigError(f"rollout.agent.agent_loop_config_path: {problem}") from error
    if not isinstance(listed, list):
        raise ConfigError(f"{path}: expected a list of {{name, _target_, ...}}")
    return dict(_read_entry(path, number, entry) for number, entry in enumerate(listed))


def _read_entry(path: Path, number: int, entry: object) -> tuple[str, LoopEntry]:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("name", "_target_")):
        raise ConfigError(f"{path}: entry {number} must have a name and a _target_ (pkg.module.Class)")
    options = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
    if special := [key for key in options if key.startswith("_")]:
        raise ConfigError(f"{path}: entry '{entry['name']}': '{special[0]}' is not supported, _target_ alone is")
    return entry["name"], LoopEntry(entry["_target_"], options, f"{path}: agent loop '{entry['name']}'")
