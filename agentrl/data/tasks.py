"""Tasks from rows: verl's columns, or the plain `prompt`, `ground_truth`, `data_source`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

from pydantic import JsonValue

from agentrl.config.data import DataConfig
from agentrl.data.custom import load_custom_rows
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
from agentrl.data.rows import Row, Rows
from agentrl.data.table import Table, checked_table, load_table
from agentrl.errors import DataError
from agentrl.messages import Message
from agentrl.task import Task
from agentrl.tool_options import read_tool_options

TaskTable: TypeAlias = Table[Task]

_MEDIA = ("images", "videos", "audios")
_PARTS = ("text", "image", "image_url")
_NAMED = {"data_source", "agent_name", "ground_truth", "reward_model", "tools_kwargs", "interaction_kwargs", *_MEDIA}


def load_tasks(
    files: Sequence[str],
    config: DataConfig,
    *,
    max_samples: int = -1,
    tokenizer: Callable[[], object] = lambda: None,
) -> TaskTable:
    """The tasks of `files` (Parquet, JSON, JSONL, or names of the `datasets` library), built when asked for.

    A row has the prompt in column `config.prompt_key` (text or chat messages; a column `prompts` stands in for one
    called prompt), and may have `data_source`, `agent_name`, a ground truth (`reward_model.ground_truth`,
    `ground_truth`, `answer` or `reward_model.test_cases`), and `extra_info` with `tools_kwargs`, `interaction_kwargs`
    and `tool_config` (see `ToolOptions`). `reward_model.test_cases` and any other column are added to `extra_info`, and
    `text_prompt: true` where the prompt was text. Rows are counted from 0.

    Column `images` has a row's images, as `read_image` takes them, one for each `<image>` of the prompt's texts.

    Under `config.custom_cls` that class reads the files.

    Args:
        tokenizer: loads it, for such a class.

    Raises:
        DataError: a file or a row cannot be used; names file, row and field. Every row is checked here.
        ConfigError: the class cannot be used.
    """
    read = partial(_read_task, config)
    if config.custom_cls.path is None:
        return load_table(files, read, max_samples)
    rows = load_custom_rows(files, config, max_samples, tokenizer)
    return checked_table([rows], read, max_samples, f"{config.custom_cls.path}:{config.custom_cls.name}")


def _read_task(config: DataConfig, row: Row, position: int, rows: Rows) -> Task:
    return read_task(config, row, position, rows.source)


def read_task(config: DataConfig, row: Row, position: int, source: str | None = None) -> Task:
    """The task of a row.

    Args:
        position: in the whole dataset.
        source: its `data_source`, where it names none.

    Raises:
        FieldError: it holds none.
    """
    for key in _MEDIA[1:]:
        if row.get(key):
            raise FieldError(f"field '{key}': videos and audio are not in this version")
    prompt_key = _prompt_key(row, config)
    extra_info = _extra_info(row, prompt_key)
    try:
        read_tool_options(extra_info)  # a mistake in it is told now, not when the row is rolled out
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
    """The column that holds the prompt: derived datasets call it `prompts`."""
    stands_in = config.prompt_key == "prompt" and row.get("prompt") is None and row.get("prompts") is not None
    return "prompts" if stands_in else config.prompt_key


def _extra_info(row: Row, prompt_key: str) -> dict[str, JsonValue]:
    own = _NAMED | {prompt_key, "extra_info"}
    columns = {key: value for key, value in row.items() if key not in own and value is not None}
    test_cases = optional_object(row, "reward_model").get("test_cases")
    given = {} if test_cases is None else {"test_cases": test_cases}
    said: dict[str, JsonValue] = {"text_prompt": True} if _is_text(row.get(prompt_key)) else {}
    info = {**said, **columns, **given, **optional_object(row, "extra_info")}
    if info.get("tool_config"):
        info["tool_config"] = parse_json(info["tool_config"], "tool_config")
    return info


def _prompt(row: Row, key: str, system_prompt: str | None) -> list[Message]:
    prompt = required(row, key, "text or a list of messages (data.prompt_key)")
    if key == "prompts" and isinstance(prompt, list) and _is_text(prompt):
        if len(prompt) != 1:
            raise FieldError(f"field 'prompts': expected one prompt a row, got {len(prompt)}: write a row for each")
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
    """verl's place first; a dataset that names it `answer` need not be rewritten."""
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
