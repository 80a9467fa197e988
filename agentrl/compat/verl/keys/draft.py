"""Working state of a translation from verl's keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_KEYS_A_LINE = 8


@dataclass
class Draft:
    """Unfinished translation of verl's keys to agentrl's.

    Attributes:
        given: the verl keys that the user gave, with their values.
        values: agentrl's dotted keys and their values; missing keys have agentrl's default.
        idle: reason -> keys that the user gave and that are ignored for this reason.
        notices: further messages for the user, one line each.
        source_keys: agentrl key -> the verl key that set its value, for error messages.
    """

    given: Mapping[str, object]
    values: dict[str, object] = field(default_factory=dict)
    idle: dict[str, list[str]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    source_keys: dict[str, str] = field(default_factory=dict)

    def number(self, key: str, default: int = 1) -> int:
        """Return the value of a key as an integer; `default` if it is missing or not an integer."""
        return whole(self.values.get(key), default)

    def leave_out(self, targets: Iterable[str], why: str) -> None:
        """Drop the values of the agentrl keys `targets`, because verl would not read the keys from which they came.

        If the user gave one of these verl keys, record it as ignored, with the reason `why`.
        """
        for target in targets:
            dropped, source = self.values.pop(target, None) is not None, self.source_keys.get(target, "")
            if dropped and source in self.given and source not in self.idle.setdefault(why, []):
                self.idle[why].append(source)

    def lines(self) -> list[str]:
        """All messages for the user; ignored keys with the same reason share a line."""
        return [*(_grouped(keys, why) for why, keys in self.idle.items()), *self.notices]


def _grouped(keys: Sequence[str], why: str) -> str:
    named = ", ".join(f"'{key}'" for key in keys[:_KEYS_A_LINE])
    more = f" (+{len(keys) - _KEYS_A_LINE} more)" if len(keys) > _KEYS_A_LINE else ""
    return f"{named}{more} {'is' if len(keys) == 1 else 'are'} ignored: {why}"


def whole(value: object, default: int) -> int:
    """Return `value` as an integer (10.0 counts as 10); `default` if it is not an integer."""
    try:
        number = float(str(value))
    except ValueError:
        return default
    return int(number) if number.is_integer() else default
