"""Rows from the user's dataset class (`data.custom_cls`), constructed as in verl."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import cast

from pydantic import JsonValue

from agentrl.config.data import DataConfig
from agentrl.data.rows.base import Row
from agentrl.errors import ConfigError, DataError, Kind, UnknownNameError
from agentrl.registry import load_object
from agentrl.utils.signatures import keyword_filter, parameters_of
from agentrl.utils.user_code import format_error

Plain = str | int | float | bytes | None


class CustomRows:
    """Rows of an object with `__len__` and `__getitem__(row) -> mapping`. Values are converted to JSON values.

    Arrays and numbers of libraries such as NumPy become lists and Python numbers. If a row has `raw_prompt` (messages,
    as in verl's dataset), `raw_prompt` is used as the prompt.

    Args:
        name: file and class, for error messages.
    """

    source: str | None = None

    def __init__(self, dataset: object, name: str, prompt_key: str = "prompt") -> None:
        self._dataset = dataset
        self._name = name
        self._prompt_key = prompt_key
        self._lock = Lock()  # rows are read on several threads; the class may not be thread-safe

    def __len__(self) -> int:
        try:
            return len(self._dataset)  # type: ignore[arg-type]  # errors are reported
        except Exception as error:
            raise DataError(f"{self._name}: __len__ failed: {format_error(error)}") from error

    def __getitem__(self, row: int) -> Row:
        try:
            with self._lock:
                item = self._dataset[row]  # type: ignore[index]  # errors are reported
        except Exception as error:
            raise DataError(f"{self.where(row)}: __getitem__ failed: {format_error(error)}") from error
        if not isinstance(item, Mapping):
            raise DataError(
                f"{self.where(row)}: expected a mapping such as {{'prompt': ...}}, got {type(item).__name__}"
            )
        plain = {str(key): self._plain(value, row, str(key)) for key, value in item.items()}
        if "raw_prompt" in plain:
            plain[self._prompt_key] = plain.pop("raw_prompt")
        return plain

    def scan(self, num_rows: int) -> Iterator[Row]:
        """Yield the first `num_rows` rows."""
        return (self[row] for row in range(num_rows))

    def where(self, row: int) -> str:
        """Return file, class and row."""
        return f"{self._name} row {row}"

    def _plain(self, value: object, row: int, field: str) -> JsonValue:
        if isinstance(value, Mapping):
            items = value.items()
            return {str(key): self._plain(item, row, f"{field}.{key}") for key, item in items if item is not None}
        if isinstance(value, list | tuple):
            return [self._plain(item, row, f"{field}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, Plain) or field.startswith("images"):
            return cast(JsonValue, value)  # images are unchanged: bytes, or an object with bytes
        if callable(tolist := getattr(value, "tolist", None)):
            return self._plain(tolist(), row, field)
        raise DataError(f"{self.where(row)}: field '{field}' holds a {type(value).__name__}, expected a JSON value")


def load_custom_rows(
    files: Sequence[str], config: DataConfig, max_samples: int, tokenizer: Callable[[], object]
) -> CustomRows:
    """Load the rows of the class `config.custom_cls`, which reads `files` itself.

    The class gets these arguments if its constructor accepts them: `data_files` (or `files`), `tokenizer`, `config`
    (the data section, with attributes and `get`), `processor` (None) and `max_samples`.

    Raises:
        ConfigError: the class does not exist, or requires an argument that it does not get.
        DataError: the class raises an error.
    """
    path, name = config.custom_cls.path, config.custom_cls.name
    where = f"data.custom_cls: {path}:{name}"
    try:
        cls = load_object(f"{path}:{name}")
    except UnknownNameError as error:
        raise ConfigError.at("data.custom_cls", Kind.NOT_FOUND, f"data.custom_cls: {error}") from error
    if not callable(cls):
        raise ConfigError.at("data.custom_cls", Kind.WRONG_VALUE, f"{where} is not a class")
    arguments = _arguments(cls, files, config, max_samples, tokenizer, where)
    try:
        return CustomRows(cls(**arguments), f"{path}:{name}", config.prompt_key)
    except Exception as error:
        raise DataError(f"{where} cannot be created with {', '.join(files)}: {format_error(error)}") from error


def _arguments(
    cls: Callable[..., object],
    files: Sequence[str],
    config: DataConfig,
    max_samples: int,
    tokenizer: Callable[[], object],
    where: str,
) -> dict[str, object]:
    parameters = parameters_of(cls, where)
    given: dict[str, Callable[[], object]] = {
        "data_files": lambda: list(files),
        "files": lambda: list(files),
        "tokenizer": tokenizer,
        "config": lambda: _section(config),
        "processor": lambda: None,
        "max_samples": lambda: max_samples,
    }
    needed = [each for each in parameters.values() if each.default is each.empty and each.kind < each.VAR_KEYWORD]
    for each in needed:
        if each.name not in given and each.kind is not each.VAR_POSITIONAL:
            raise ConfigError.at(
                "data.custom_cls", Kind.WRONG_VALUE, f"{where} needs '{each.name}', but gets only {', '.join(given)}"
            )
    taken = keyword_filter(cls)(given)
    if "data_files" in taken and "files" not in parameters:
        taken.pop("files", None)
    return {key: given[key]() for key in taken}


def _section(config: DataConfig) -> object:
    """Return the section as a verl-style object: keys are attributes, and `get` accepts a default."""
    from omegaconf import OmegaConf  # slow to import, and only needed for custom classes

    return OmegaConf.create(config.model_dump(mode="json"))
