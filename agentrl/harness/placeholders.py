"""Placeholders in the settings of a harness, such as {base_url}."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.errors import DataError, suggestion

_PLACEHOLDER = re.compile(r"(?<!\{)\{([a-z_]+(?:\.\w+)?)\}(?!\})")
"""`{name}` or `{row.column}`. Other braces are kept: those of JSON, and `{{name}}` of templates."""
_ROW = "row."

NAMES = (
    "base_url",
    "root_url",
    "key",
    "model",
    "instruction",
    "instruction_json",
    "system",
    "system_json",
    "home",
    "workdir",
    "folder",
    "cwd",
)


@dataclass(frozen=True, slots=True)
class Values:
    """Values of the placeholders of one rollout.

    Attributes:
        root_url: address of the gateway without /v1, for clients that add /v1 themselves.
        folder: folder of the settings file.
        cwd: folder in which the run was started.
        row: `extra_info` of the task, for `{row.column}`.
    """

    root_url: str
    key: str
    model: str
    instruction: str
    system: str
    home: str
    workdir: str
    folder: str
    cwd: str
    row: Mapping[str, JsonValue]

    @property
    def base_url(self) -> str:
        """Address that ends with /v1."""
        return f"{self.root_url}/v1"

    def fill(self, text: str) -> str:
        """Replace the placeholders of a text.

        Raises:
            DataError: the row has no such column.
        """
        return _PLACEHOLDER.sub(lambda found: self._value(found[1]), text)

    def _value(self, name: str) -> str:
        if name.startswith(_ROW):
            return self._of_row(name.removeprefix(_ROW))
        if name.endswith("_json"):
            return json.dumps(getattr(self, name.removesuffix("_json")))
        return str(getattr(self, name))

    def _of_row(self, column: str) -> str:
        if column not in self.row:
            raise DataError(f"the harness needs a column '{column}': {suggestion(column, self.row)}")
        value = self.row[column]
        return value if isinstance(value, str) else json.dumps(value)


def has_placeholder(text: str) -> bool:
    """Whether a text has a placeholder, known or not."""
    return _PLACEHOLDER.search(text) is not None


def unknown_names(text: str) -> Iterator[str]:
    """Yield an error line for each unknown placeholder in a text."""
    for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
        if name not in NAMES and not name.startswith(_ROW):
            yield f"unknown placeholder '{{{name}}}': {suggestion(name, [*NAMES, 'row.COLUMN'])}"


def shows_system(text: str) -> bool:
    """Whether a text shows the system message separately from the instruction."""
    return not {"system", "system_json"}.isdisjoint(_PLACEHOLDER.findall(text))
