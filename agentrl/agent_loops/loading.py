"""The agent loops of a run: found by name, checked at the start, built once per rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import JsonValue

from agentrl.agent_loops.base import AgentLoop, SharedByRun, agent_loops
from agentrl.chat.parsers import AUTO, tool_parsers
from agentrl.chat.parsers.choice import format_of
from agentrl.chat.parsers.fit import make_parser
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError, DataError, Kind, UnknownNameError, suggestion
from agentrl.registry import make_importable
from agentrl.types.template_variables import NONE
from agentrl.utils.user_code import format_error

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat


@dataclass(frozen=True, slots=True)
class LoopEntry:
    """One entry of the agent loop file: the class to build and its options; `where` names the entry in errors."""

    target: str
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    where: str = ""


class LoopFactory:
    """Builds agent loops by name. Each rollout gets a new loop, because a loop may keep state on `self`.

    A name is an entry of `rollout.agent.agent_loop_config_path`, or any name that the registry accepts.

    Raises:
        ConfigError, UnknownNameError: the agent loop file is invalid, or the default agent loop cannot be built.
    """

    def __init__(self, chat: ChatFormat, config: RunConfig) -> None:
        self._chat = chat
        self._config = config
        self._entries = configured_loops(config)
        self._makers: dict[tuple[str, str | None], Callable[[ChatFormat], AgentLoop]] = {}
        self._shared: dict[str, SharedByRun] = {}
        self.build(None)

    async def close(self) -> None:
        """Close the objects that the agent loops share. All rollouts must have ended."""
        for shared in self._shared.values():
            await shared.close()

    def build(
        self, name: str | None, tool_format: str | None = None, variables: Mapping[str, JsonValue] = NONE
    ) -> AgentLoop:
        """Build a new loop by name; None: the default loop.

        Args:
            tool_format: the tool-call format of the model, in place of `rollout.multi_turn.format`.
            variables: variables of the chat template, in addition to `data.apply_chat_template_kwargs`.

        Raises:
            ConfigError, UnknownNameError: the loop is unknown, or does not accept its options or this format.
            DataError: a row names code by a path, see `refuse_code_of_row`.
        """
        key = (name or self._config.rollout.agent_loop, tool_format)
        if key not in self._makers:
            refuse_code_of_row(self._config, self._entries, name, tool_format)
            self._makers[key] = self._maker(*key)
        loop = self._makers[key](self._chat.with_variables(variables))
        loop.call_format = loop.tool_format or self._format(tool_format)
        return loop

    def _format(self, tool_format: str | None) -> str:
        """Return the row's tool-call format; if the row has none or `auto`, the configured format.

        The configured format `auto` selects one that fits the chat template.
        """
        configured = self._config.rollout.multi_turn.format
        return format_of(configured if tool_format in (None, AUTO) else tool_format, self._chat)

    def _maker(self, name: str, tool_format: str | None) -> Callable[[ChatFormat], AgentLoop]:
        entry = self._entries.get(name) or LoopEntry(name, where=f"agent loop '{name}'")
        factory = find_loop(name, self._entries)
        own_format = getattr(factory, "tool_format", None)
        if own_format and tool_format not in (None, AUTO, own_format):
            raise ConfigError.at(
                "rollout.multi_turn.format",
                Kind.CONFLICT,
                f"{entry.where} works with tool_format '{own_format}', not '{tool_format}'",
            )
        parser = make_parser(own_format or self._format(tool_format), self._chat)
        build, config = getattr(factory, "as_agent_loop", factory), self._config
        if open_shared := getattr(factory, "open_shared", None):
            self._shared[name] = self._shared.get(name) or open_shared(config)
            build = partial(build, shared=self._shared[name])

        def make(chat: ChatFormat) -> AgentLoop:
            made: AgentLoop = build(chat, parser, config, **entry.options)
            return made

        try:
            loop = make(self._chat)
        except AgentRLError:
            raise
        except Exception as error:
            raise ConfigError.keyless(f"{entry.where}: {format_error(error)}") from error
        if not isinstance(loop, AgentLoop):
            raise ConfigError.keyless(
                f"{entry.where}: '{entry.target}' must be a subclass of agentrl.agent_loops.AgentLoop"
            )
        return make


def configured_loops(config: RunConfig) -> dict[str, LoopEntry]:
    """Return the entries of `rollout.agent.agent_loop_config_path`, by name.

    Raises:
        ConfigError: the file is invalid.
    """
    path = config.rollout.agent.agent_loop_config_path
    return read_entries(path) if path else {}


def refuse_code_of_row(
    config: RunConfig, entries: Mapping[str, LoopEntry], agent_name: str | None, tool_format: str | None
) -> None:
    """Reject a row that names code by a path, unless the configuration names the same code. Datasets must not run code.

    Raises:
        DataError: the row is rejected; the message names the field and what to add to the configuration.
    """
    rollout = config.rollout
    named = agent_name in entries or agent_name == rollout.agent.default_agent_loop
    if agent_name is not None and not named and agent_loops.is_path(agent_name):
        raise DataError(
            f"field 'agent_name': '{agent_name}' is code, and code that a row names is not run: add"
            " rollout.agent.agent_loop_config_path=FILE with an entry of that name"
        )
    if tool_format not in (None, AUTO, rollout.multi_turn.format) and tool_parsers.is_path(tool_format):
        raise DataError(
            f"field 'tool_config.tool_format': '{tool_format}' is code, and code that a row names is not run: set"
            f" rollout.multi_turn.format={tool_format}, or register the parser under a name"
        )


def refuse_strip(loop: object, name: str) -> None:
    """Reject `rollout.multi_turn.thinking=strip` if the agent loop does not support this value.

    Args:
        loop: the agent loop or its class.

    Raises:
        ConfigError: the agent loop does not support `strip`.
    """
    if not getattr(loop, "strips_thinking", True):
        key = "rollout.multi_turn.thinking"
        why = f"`{key}=strip` does not work with agent loop '{name}', which writes its own messages"
        raise ConfigError.at(key, Kind.CONFLICT, why)


def find_loop(name: str, entries: Mapping[str, LoopEntry]) -> Callable[..., AgentLoop]:
    """Find the factory of the agent loop `name`: from an entry, or from the registry.

    Raises:
        UnknownNameError: there is no such agent loop.
    """
    entry = entries.get(name)
    try:
        return agent_loops.get(entry.target if entry else name)
    except UnknownNameError as error:
        if entry:
            raise UnknownNameError(f"{entry.where}: {error}") from error
        if entries and not {".", ":"} & set(name):
            valid = [*entries, *agent_loops.names()]
            raise UnknownNameError(f"unknown agent loop '{name}': {suggestion(name, valid)}") from error
        raise


def read_entries(path: Path) -> dict[str, LoopEntry]:
    """Read verl's YAML list of `{name, _target_, <options>}`; return the entries by name.

    Raises:
        ConfigError: the file cannot be read, or holds no list, or an entry is invalid. The message names the entry.
    """
    try:
        listed = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        problem = " ".join(str(error).replace('"<unicode string>"', f"'{path}'").split())
        raise ConfigError.at(
            "rollout.agent.agent_loop_config_path", Kind.NOT_FOUND, f"rollout.agent.agent_loop_config_path: {problem}"
        ) from error
    if not isinstance(listed, list):
        raise ConfigError.at(
            "rollout.agent.agent_loop_config_path",
            Kind.WRONG_VALUE,
            f"{path}: expected a list of {{name, _target_, ...}}",
        )
    make_importable(path.parent)
    return dict(_read_entry(path, number, entry) for number, entry in enumerate(listed))


def _read_entry(path: Path, number: int, entry: object) -> tuple[str, LoopEntry]:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("name", "_target_")):
        raise ConfigError.at(
            "rollout.agent.agent_loop_config_path",
            Kind.WRONG_VALUE,
            f"{path}: entry {number} must have a name and a _target_ (pkg.module.Class)",
        )
    options = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
    if special := [key for key in options if key.startswith("_")]:
        raise ConfigError.at(
            "rollout.agent.agent_loop_config_path",
            Kind.NOT_SUPPORTED,
            f"{path}: entry '{entry['name']}': '{special[0]}' is not supported, only _target_ is",
        )
    return entry["name"], LoopEntry(entry["_target_"], options, f"{path}: agent loop '{entry['name']}'")
