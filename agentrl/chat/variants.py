"""Chat formats that differ in the variables of their template, created when a row needs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Generic, TypeVar

from pydantic import JsonValue

from agentrl.chat.template import Template
from agentrl.errors import DataError, suggestion
from agentrl.types.template_variables import COLUMN

MAX_VARIANTS = 32
"""Maximum number of cached variants. The cache needs a limit, because rows may have any number of different variables.
"""

T = TypeVar("T")


def check_names(template: Template, variables: Mapping[str, JsonValue]) -> None:
    """Refuse a variable of a row that the chat template does not read: it would have no effect.

    Raises:
        DataError: the message names the variable and the nearest name in the template.
    """
    for name in variables:
        if name not in template.names:
            why = f"the chat template has no variable '{name}': {suggestion(name, sorted(template.names))}"
            raise DataError(f"field '{COLUMN}': {why}")


class Variants(Generic[T]):
    """Cache of the most recently used variants. Several threads may use the cache.

    A variant is a chat format for certain template variables, or an encoder for certain control tokens.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[str, T] = {}

    def get(self, variables: Mapping[str, JsonValue], make: Callable[[], T]) -> T:
        """Return the variant for `variables`; call `make` if it is not cached."""
        key = json.dumps(dict(variables), sort_keys=True)
        with self._lock:
            if key not in self._kept:
                if len(self._kept) >= MAX_VARIANTS:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = make()
            else:
                self._kept[key] = self._kept.pop(key)  # now last; the least recently used comes first
            return self._kept[key]
