"""What a translation is worked out on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_KEYS_A_LINE = 8


@dataclass
class Draft:
    """agentrl's keys as they come to be known.

    Attributes:
        given: the verl keys that were said, with their values.
        values: agentrl's dotted keys and their values; what is not there has agentrl's default.
        idle: what was said and has no meaning here: why -> the keys.
        notices: what else the user should know, a line each.
        said_as: the verl key that each agentrl key came from, for error messages.
    """

    given: Mapping[str, object]
    values: dict[str, object] = field(default_factory=dict)
    idle: dict[str, list[str]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    said_as: dict[str, str] = field(default_factory=dict)

    def number(self, key: str, default: int = 1) -> int:
        """A whole number among the values; `default` where there is none, or something that will be refused."""
        return whole(self.values.get(key), default)

    def leave_out(self, targets: Iterable[str], why: str) -> None:
        """Drop keys of agentrl's that verl would not read either; of those that were said, say why."""
        for target in targets:
            dropped, said = self.values.pop(target, None) is not None, self.said_as.get(target, "")
            if dropped and said in self.given and said not in self.idle.setdefault(why, []):
                self.idle[why].append(said)

    def lines(self) -> list[str]:
        """All that the user should know; keys of one reason in one line."""
        return [*(_grouped(keys, why) for why, keys in self.idle.items()), *self.notices]


def _grouped(keys: Sequence[str], why: str) -> str:
    named = ", ".join(f"'{key}'" for key in keys[:_KEYS_A_LINE])
    more = f" (+{len(keys) - _KEYS_A_LINE} more)" if len(keys) > _KEYS_A_LINE else ""
    return f"{named}{more} {'has' if len(keys) == 1 else 'have'} no meaning here: {why}"


def whole(value: object, default: int) -> int:
    """`value` as a whole number, also where it is written as 10.0; `default` where it is none."""
    try:
        number = float(str(value))
    except ValueError:
        return default
    return int(number) if number.is_integer() else default
