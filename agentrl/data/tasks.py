"""Tasks from rows with verl's columns, or with the columns `prompt`, `ground_truth`, `data_source`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

from pydantic import JsonValue

from agentrl.config.data import DataConfig
from agentrl.data.columns import TASK
from agentrl.data.fields import (
    FieldError,
    optional_object,
    optional_text,
    parse_json,
    read_messages,
    required,
    with_system,
    wrong,
)
from agentrl.data.images import with_images
from agentrl.data.nemo_gym import with_prompt
from agentrl.data.rows.base import Row, Rows
from agentrl.data.rows.custom import load_custom_rows
from agentrl.data.rows.table import Table, checked_table, load_table
from agentrl.errors import DataError
from agentrl.types.messages import Message
from agentrl.types.task import Task, read_tool_options
from agentrl.types.template_variables import COLUMN, read_template_variables

TaskTable: TypeAlias = Table[Task]

_MEDIA = ("images", "videos", "audios")
_PARTS = ("text", "image", "image_url")
_NAMED = TASK.keys() - {
    "prompt",
    "prompts",
    "answer",
    "responses_create_params",
}  # other columns are added to extra_info


def load_tasks(
    files: Sequence[str],
    config: DataConfig,
    *,
    max_samples: int = -1,
    tokenizer: Callable[[], object] = lambda: None,
) -> TaskTable:
    """Load the tasks of `files` (Parquet, JSON, JSONL, task folders, or names for `datasets`); tasks are parsed lazily.

    Columns of a row; only the prompt is required:

    - `config.prompt_key`: the prompt (text or chat messages). If `prompt` is missing, column `prompts` is used.
    - `data_source`, `agent_name`: see `columns.TASK`.
    - The ground truth: `reward_model.ground_truth`, `ground_truth`, `answer` or `reward_model.test_cases`.
    - `extra_info`, with `tools_kwargs`, `interaction_kwargs`, `tool_config` (see `ToolOptions`) and
      `chat_template_kwargs`, variables of the chat template.
    - `responses_create_params`: used in place of a prompt (NeMo-Gym).
    - `images`: images in a format that `read_image` accepts, one for each `<image>` in the prompt's texts.

    `reward_model.test_cases` and all other columns are added to `extra_info`. If the prompt is text,
    `text_prompt: true` is added too. Rows are counted from 0. `config.custom_cls`, if set, reads the files.

    Args:
        tokenizer: loads the tokenizer, which a custom dataset class may need.

    Raises:
        DataError: a file or a row is invalid; the message names file, row and field. Every row is parsed once here, to
            check it.
        ConfigError: the custom class cannot be used.
    """
    read = partial(_read_task, config)
    if config.custom_cls.path is None:
        return load_table(files, read, max_samples)
    rows = load_custom_rows(files, config, max_samples, tokenizer)
    return checked_table([rows], read, max_samples, f"{config.custom_cls.path}:{config.custom_cls.name}")


def _read_task(config: DataConfig, row: Row, position: int, rows: Rows) -> Task:
    return read_task(config, row, position, rows.source)


def read_task(config: DataConfig, row: Row, position: int, source: str | None = None) -> Task:
    """Read the task of a row.

    Args:
        position: the row's position in the complete dataset.
        source: default of `data_source`.

    Raises:
        FieldError: the row is not a valid task.
    """
    for key in _MEDIA[1:]:
        if row.get(key):
            raise FieldError(f"field '{key}': videos and audio are not supported")
    row = with_prompt(row, config.prompt_key)
    prompt_key = _prompt_key(row, config)
    extra_info = _extra_info(row, prompt_key)
    try:
        read_tool_options(extra_info)  # reports errors now, not during the rollout
        read_template_variables(extra_info.get(COLUMN))
    except DataError as error:
        raise FieldError(str(error)) from error
    messages, images = with_images(_prompt(row, prompt_key, config.system_prompt), row, _MEDIA[0])
    return Task(
        messages=messages,
        ground_truth=_ground_truth(row),
        data_source=optional_text(row, "data_source") or source or "unknown",
        index=position,
        agent_name=optional_text(row, "agent_name"),
        tools_kwargs=_tools_kwargs(row, extra_info),
        interaction_kwargs=_own_or_extra(row, extra_info, "interaction_kwargs"),
        extra_info=extra_info,
        images=images,
    )


def _prompt_key(row: Row, config: DataConfig) -> str:
    """Return the name of the prompt column; some datasets use `prompts` in place of `prompt`."""
    stands_in = config.prompt_key == "prompt" and row.get("prompt") is None and row.get("prompts") is not None
    return "prompts" if stands_in else config.prompt_key


def _extra_info(row: Row, prompt_key: str) -> dict[str, JsonValue]:
    own = _NAMED | {prompt_key, "extra_info"}
    columns = {key: value for key, value in row.items() if key not in own and value is not None}
    test_cases = optional_object(row, "reward_model").get("test_cases")
    given = {} if test_cases is None else {"test_cases": test_cases}
    marks: dict[str, JsonValue] = {"text_prompt": True} if _is_text(row.get(prompt_key)) else {}
    info = {**marks, **columns, **given, **optional_object(row, "extra_info")}
    for key in ("tool_config", COLUMN):
        if info.get(key):
            info[key] = parse_json(info[key], key)
    return info


def _prompt(row: Row, key: str, system_prompt: str | None) -> list[Message]:
    prompt = required(row, key, "text or a list of messages (data.prompt_key)")
    if key == "prompts" and isinstance(prompt, list) and _is_text(prompt):
        if len(prompt) != 1:
            raise FieldError(f"field 'prompts': expected one prompt per row, got {len(prompt)}: write one row for each")
        prompt = prompt[0]
    if isinstance(prompt, str):
        messages = [Message(role="user", content=prompt)]
    elif isinstance(prompt, list):
        messages = read_messages(prompt, key, _PARTS)
    else:
        raise wrong(key, "text or a list of messages", prompt)
    if not any(str(message.get("content") or "").strip() for message in messages):
        raise FieldError(f"field '{key}': expected a prompt, got empty text")
    return with_system(messages, system_prompt)


def _is_text(prompt: JsonValue) -> bool:
    parts = prompt if isinstance(prompt, list) else [prompt]
    return all(isinstance(part, str) for part in parts)


def _ground_truth(row: Row) -> JsonValue:
    """Return the ground truth from verl's column, or from another column such as `answer`."""
    model = optional_object(row, "reward_model")
    for holder, key in ((model, "ground_truth"), (row, "ground_truth"), (row, "answer"), (model, "test_cases")):
        if holder.get(key) is not None:
            return holder[key]
    return None


def _tools_kwargs(row: Row, extra_info: Row) -> Mapping[str, Mapping[str, JsonValue]]:
    tools = _own_or_extra(row, extra_info, "tools_kwargs")
    for name, kwargs in tools.items():
        if not isinstance(kwargs, dict):
            raise wrong(f"tools_kwargs.{name}", "an object such as {create_kwargs: {...}}", kwargs)
    return cast(Mapping[str, Mapping[str, JsonValue]], tools)


def _own_or_extra(row: Row, extra_info: Row, key: str) -> Mapping[str, JsonValue]:
    return optional_object(row, key) or optional_object(extra_info, key, within="extra_info.")
