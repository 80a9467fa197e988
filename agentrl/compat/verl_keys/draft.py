"""What a translation is worked out on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Draft:
    """agentrl's keys as they come to be known.

    Attributes:
        given: the verl keys that were said, with their values.
        values: agentrl's dotted keys and their values; what is not there has agentrl's default.
        notices: what the user should know, a line each.
        said_as: the verl key that each agentrl key came from, for error messages.
    """

    given: Mapping[str, object]
    values: dict[str, object] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    said_as: dict[str, str] = field(default_factory=dict)

    def number(self, key: str, default: int = 1) -> int:
        """A whole number among the values; `default` where there is none, or something that will be refused."""
        return whole(self.values.get(key), default)


def whole(value: object, default: int) -> int:
    """`value` as a whole number, `default` where it is none."""
    try:
        return int(str(value))
    except ValueError:
        return default
