"""Reads a client's JSON: checks the type of every value, and names the key in each error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.gateway.base import Refusal, RequestError

JsonObject = dict[str, JsonValue]

_TYPE_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


def type_name(value: JsonValue) -> str:
    """Return the name of a JSON value's type, for an error."""
    return _TYPE_NAMES.get(type(value), "a number")


def refusal(key: str, text: str) -> RequestError:
    """Return the error for a malformed or refused key of a request."""
    return RequestError(Refusal.INVALID, f"{key}: {text}")


@dataclass(slots=True)
class Fields:
    """A JSON object of a request.

    Attributes:
        parent: the object that contains this object; None for the body.
        name_in_parent: key of this object in `parent`; for an object in a list, the key of the list and the index.
    """

    values: Mapping[str, JsonValue]
    parent: Fields | None = None
    name_in_parent: str | tuple[str, int] = ""

    @classmethod
    def of(cls, value: JsonValue, parent: Fields | None = None, name: str | tuple[str, int] = "") -> Fields:
        """Return the fields of a value.

        Raises:
            RequestError: the value is not an object.
        """
        fields = cls({}, parent, name)
        if not isinstance(value, dict):
            raise refusal(fields.path or "body", f"expected an object, got {type_name(value)}")
        fields.values = value
        return fields

    @property
    def path(self) -> str:
        """Path of the object in the body, such as `messages[2]`; "" for the body itself."""
        if self.parent is None:
            return ""
        if isinstance(self.name_in_parent, str):
            return self.parent.key(self.name_in_parent)
        name, number = self.name_in_parent
        return f"{self.parent.key(name)}[{number}]"

    def key(self, name: str) -> str:
        """Return the full name of a key of this object, such as `messages[2].role`."""
        path = self.path
        return f"{path}.{name}" if path else name

    def refusal(self, name: str, text: str) -> RequestError:
        """Return the error for a key of this object."""
        return refusal(self.key(name), text)

    def get(self, name: str) -> JsonValue:
        """Return a value of any type; None if the key is missing or null."""
        return self.values.get(name)

    def wrong_type(self, name: str, expected: str) -> RequestError:
        """Return the error for a key whose value is missing or has the wrong type."""
        got = type_name(self.values[name]) if name in self.values else "nothing"
        return self.refusal(name, f"expected {expected}, got {got}")

    def text(self, name: str) -> str:
        """Return the value of a key, which must be a text.

        Raises:
            RequestError: the key is missing, or its value has the wrong type. The methods from `name` to `texts` raise
                `RequestError` for wrong values, too.
        """
        value = self.get(name)
        if not isinstance(value, str):
            raise self.wrong_type(name, "text")
        return value

    def name(self, name: str) -> str:
        """Return a text that is not empty."""
        return self.text(name) or self._empty(name)

    def _empty(self, name: str) -> str:
        raise self.refusal(name, "expected a text that is not empty")

    def optional_text(self, name: str) -> str:
        """Return a text; "" if the key is missing or null."""
        return "" if self.get(name) is None else self.text(name)

    def count(self, name: str) -> int | None:
        """Return an integer of at least 1; None if the key is missing or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refusal(name, f"expected a whole number of at least 1, got {str(value)[:40]}")
        return value

    def flag(self, name: str) -> bool:
        """Return a truth value; false if the key is missing or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong_type(name, "true or false")
        return bool(value)

    def fields(self, name: str) -> Fields:
        """Return an object; an empty one if the key is missing or null."""
        value = self.get(name)
        return Fields.of({} if value is None else value, self, name)

    def required_fields(self, name: str) -> Fields:
        """Return an object."""
        if name not in self.values:
            raise self.wrong_type(name, "an object")
        return Fields.of(self.values[name], self, name)

    def elements(self, name: str, expected: str = "a list") -> list[JsonValue]:
        """Return a list; an empty one if the key is missing or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong_type(name, expected)
        return value or []

    def each(self, name: str, expected: str = "a list") -> Iterator[Fields]:
        """Yield the objects of a list."""
        for number, value in enumerate(self.elements(name, expected)):
            yield Fields.of(value, self, (name, number))

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of a list, or a single text, as a tuple; an empty text is refused."""
        value = self.get(name)
        values = [value] if isinstance(value, str) else self.elements(name, "text or a list of texts")
        for each in values:
            if not isinstance(each, str) or not each:
                raise self.refusal(name, "expected texts that are not empty")
        return tuple(str(each) for each in values)

    def refuse_if_set(self, reasons: Mapping[str, str]) -> None:
        """Refuse keys that have a value, unless the value is null, false, 0, or an empty text, list or object.

        Args:
            reasons: key -> why it is refused.
        """
        for name, reason in reasons.items():
            if self.get(name) not in (None, False, 0, "", [], {}):
                raise self.refusal(name, reason)

    def with_effect(self, neutral: Mapping[str, tuple[JsonValue, ...]]) -> Iterator[str]:
        """Yield the full names of keys whose values ask for an effect that the gateway does not support.

        Args:
            neutral: key -> the values, besides null, that ask for no effect.
        """
        for name, values in neutral.items():
            if self.get(name) is not None and self.get(name) not in values:
                yield self.key(name)
