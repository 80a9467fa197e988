"""A task: one row of the dataset, with its tool options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import BeforeValidator, JsonValue, NonNegativeInt, PositiveFloat, ValidationError

from agentrl.config.base import Section, one_or_many
from agentrl.errors import DataError, suggestion
from agentrl.types.messages import Message, message_text
from agentrl.types.template_variables import COLUMN, read_template_variables
from agentrl.utils.short_repr import short


@dataclass(frozen=True, slots=True, repr=False)
class Task:
    """One row of the dataset.

    Attributes:
        messages: the prompt, as chat messages.
        ground_truth: the reference for the reward; never shown to the model.
        data_source: name of the row's dataset. It selects the reward; metrics report the success of each data source.
        index: the row's position in the dataset.
        uid: unique id of this draw of the row; rollouts with the same uid form one group.
        agent_name: the agent loop for this row; None: the configured default.
        tools_kwargs: for each tool, arguments of `create`, `execute`, `calc_reward` and `release`.
        interaction_kwargs: the simulated user (`name`) and its keyword arguments.
        extra_info: all other values of the row; passed to the reward.
        images: the bytes of the images in `messages`, by content hash. The store saves them separately from the rows.
        tool_options: the row's options for tools; read from `extra_info`.
        template_variables: the row's variables for the chat template; read from `extra_info`.
    """

    messages: Sequence[Message]
    ground_truth: JsonValue = None
    data_source: str = "unknown"
    index: int = 0
    uid: str = ""
    agent_name: str | None = None
    tools_kwargs: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    interaction_kwargs: Mapping[str, JsonValue] = field(default_factory=dict)
    extra_info: Mapping[str, JsonValue] = field(default_factory=dict)
    images: Mapping[str, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        asked = self.messages[-1].get("content", "") if self.messages else ""
        return f"Task(row {self.index} of {short(self.data_source, 20)}, uid {short(self.uid, 20)}, {short(asked)})"

    @property
    def instruction(self) -> str:
        """Texts of all messages of the prompt, including system messages, joined in order."""
        return "\n\n".join(text for text in map(message_text, self.messages) if text)

    @property
    def tool_options(self) -> ToolOptions:
        """The row's options for tools, which override the configuration.

        Raises:
            DataError: the options are invalid.
        """
        return read_tool_options(self.extra_info)

    @property
    def template_variables(self) -> Mapping[str, JsonValue]:
        """The row's variables for the chat template, which extend `data.apply_chat_template_kwargs`.

        Raises:
            DataError: the variables are invalid.
        """
        return read_template_variables(self.extra_info.get(COLUMN))


def with_observation(task: Task, observation: str) -> Task:
    """Return the task with text added to its last message, without a separator."""
    last = task.messages[-1].copy()
    content = last.get("content")
    if isinstance(content, list):
        last["content"] = [*content, {"type": "text", "text": observation}]
    else:
        last["content"] = f"{content or ''}{observation}"
    return replace(task, messages=[*task.messages[:-1], last])


def observation_in(task: Task, messages: Sequence[Message]) -> str:
    """Find, in the messages of a rollout, the text that `with_observation` added to the task; "" if there is none."""
    last, place = task.messages[-1], len(task.messages) - 1
    for message in messages[place : place + 2]:  # a loop may add a system message before the task's messages
        if added := _added(last.get("content"), message.get("content")):
            return added
    return ""


def _added(content: object, longer: object) -> str:
    if isinstance(content, list) and isinstance(longer, list) and longer[:-1] == content:
        return str(longer[-1].get("text", "")) if isinstance(longer[-1], dict) else ""
    starts = isinstance(content, str) and isinstance(longer, str) and longer.startswith(content)
    return str(longer).removeprefix(str(content)) if starts else ""


_KEY = "tool_config"


class ToolOptions(Section):
    """A row's `tool_config`. A missing key means that the configured value applies."""

    available_tools: Annotated[tuple[str, ...] | None, BeforeValidator(one_or_many)] = None
    """Names of the tools offered for this row; alias `tool_selection`."""
    tool_format: str | None = None
    """Format of tool calls; overrides rollout.multi_turn.format."""
    max_tool_calls: NonNegativeInt | None = None
    """Maximum number of calls in a rollout; overrides rollout.multi_turn.max_tool_calls."""
    timeout: PositiveFloat | None = None
    """Timeout of a call in seconds; overrides rollout.multi_turn.tool_timeout_s and a tool's own timeout."""


AS_CONFIGURED = ToolOptions()


def read_tool_options(extra_info: Mapping[str, JsonValue]) -> ToolOptions:
    """Read `tool_config` and `tool_selection` (verl's name for `available_tools`) from `extra_info`.

    Raises:
        DataError: an unknown key (the message suggests the nearest key), an invalid value, or two different tool
            selections.
    """
    config, selection = extra_info.get(_KEY), extra_info.get("tool_selection")
    if config is None and selection is None:
        return AS_CONFIGURED
    options = _read({} if config is None else config, _KEY)
    if selection is None:
        return options
    selected = _read({"available_tools": selection}, "tool_selection")
    if options.available_tools not in (None, selected.available_tools):
        raise DataError(f"'{_KEY}.available_tools' and 'tool_selection' name different tools")
    return options.model_copy(update={"available_tools": selected.available_tools})


def _read(value: JsonValue, name: str) -> ToolOptions:
    try:
        return ToolOptions.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
    key = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        raise DataError(f"field '{name}': unknown key '{key}': {suggestion(key, ToolOptions.model_fields)}")
    where = f"{name}.{key}" if key and name == _KEY else name
    expected = {"available_tools": "a list of tool names", "tool_format": "text", "": "an object"}
    number = "a whole number, 0 or more" if key == "max_tool_calls" else "seconds above 0"
    raise DataError(f"field '{where}': expected {expected.get(key, number)}, got {problem['input']!r:.100}")
