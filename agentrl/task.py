"""A task: one row of the dataset, and what of the dataset its rollouts are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from agentrl.messages import Message
from agentrl.tool_options import ToolOptions, read_tool_options


@dataclass(frozen=True, slots=True)
class Task:
    """One row of the dataset.

    Attributes:
        messages: the prompt, as chat messages.
        ground_truth: what the reward compares with; never shown to the model.
        data_source: which dataset the row comes from; rewards and metrics are told apart by it.
        index: the row's position in the dataset.
        uid: identity of this draw of the row; its sibling rollouts form one group.
        agent_name: the agent loop this row wants, else the configured default.
        tools_kwargs: per tool name, arguments for `create`, `execute`, `calc_reward` and `release`.
        interaction_kwargs: which simulated user answers (`name`), and what it is told.
        extra_info: everything else the row brings; handed to the reward.
        images: the bytes of the images in `messages`, by their content hashes. Not kept with rollouts' rows: the store
            has them beside.
        tool_options: what it says of its tools; read from `extra_info`.
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

    @property
    def tool_options(self) -> ToolOptions:
        """What the row says of its tools, in place of the configuration.

        Raises:
            DataError: it cannot be read.
        """
        return read_tool_options(self.extra_info)
