"""The base of every configuration section."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of keys that refuses unknown ones; the sentence under a field is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def one_or_many(value: object) -> object:
    """A single name where a list of names is expected means a list of one."""
    return (value,) if isinstance(value, str) else value
