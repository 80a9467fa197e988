"""The columns of rows that agentrl reads, with type and meaning."""

from __future__ import annotations

from collections.abc import Mapping

Columns = Mapping[str, tuple[str, str]]
"""Name -> (type, meaning)."""

TASK: Columns = {
    "prompt": ("text or messages", "the input of the model; `data.prompt_key` names another column"),
    "prompts": ("text, [text] or messages", "used if `prompt` is missing"),
    "responses_create_params": (
        "object",
        "NeMo-Gym request: `input` is used if the row has no prompt, `tools` selects the tools",
    ),
    "ground_truth": ("any", "the reference of the reward; the model never sees it"),
    "answer": ("any", "used if `ground_truth` is missing"),
    "reward_model": ("object", "verl: contains `ground_truth` (first choice) or `test_cases` (last choice)"),
    "data_source": ("text", "selects the reward under `reward.name=auto`, and splits metrics; default `unknown`"),
    "agent_name": ("text", "agent loop of this row, in place of `rollout.agent.default_agent_loop`"),
    "tools_kwargs": (
        "object",
        "tool name -> `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs`, `release_kwargs`",
    ),
    "interaction_kwargs": ("object", "`name` of the simulated user; other keys are its keyword arguments"),
    "images": ("list", "one image for each `<image>` in the prompt: a path, bytes, a data URL"),
    "extra_info": ("object", "further values; in verl, also `tools_kwargs`, `interaction_kwargs`, `tool_config`"),
    "videos": ("list", "refused unless empty"),
    "audios": ("list", "refused unless empty"),
}
"""Columns of a task row. All other columns of the row are added to `extra_info`."""

EXTRA_INFO: Columns = {
    "tools_kwargs": ("object", "used if the row has no column of this name"),
    "interaction_kwargs": ("object", "used if the row has no column of this name"),
    "tool_config": ("object", "`available_tools`, `tool_format`, `max_tool_calls`, `timeout` of this row"),
    "chat_template_kwargs": ("object", "TRL: variables of the chat template for this row, such as `enable_thinking`"),
    "tool_selection": ("list of text", "verl: names of the tools of this row"),
}
"""Keys of `extra_info` that agentrl reads. The reward function gets these keys and all other keys."""

CONVERSATION: Columns = {
    "messages": ("messages", "the conversation; its assistant turns are trained"),
    "tools": ("list of schemas", "tools that the chat template shows; if absent, the configured tools"),
    "chat_template_kwargs": ("object", "variables of the chat template, such as `enable_thinking`"),
    "label": ("number", "`reward_outcomes`: outcome of the conversation"),
    "labels": ("list of numbers or null", "`reward_steps`: one entry per assistant turn"),
}
"""Columns of a row for the algorithms `sft`, `reward_outcomes` and `reward_steps`."""

PAIR: Columns = {
    "prompt": ("text or messages", "the common prompt; absent: the common start of the conversations"),
    "chosen": ("text or messages", "the preferred answer, or conversation"),
    "rejected": ("text or messages", "the rejected answer, or conversation"),
    "tools": ("list of schemas", "tools that the chat template shows"),
    "chat_template_kwargs": ("object", "variables of the chat template, such as `enable_thinking`"),
}
"""Columns of a row for the algorithms `dpo`, `ipo` and `reward_pairs`."""
