"""Conversion of a configuration's paths to absolute paths, so that a later `os.chdir` has no effect."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic.fields import FieldInfo

from agentrl.config.base import Section
from agentrl.config.run import RunConfig
from agentrl.config.uses import Use, mark_of
from agentrl.config.validate import section_of

S = TypeVar("S", bound=Section)

_NAMES = ("experiment_name",)  # a part of a path, not a path itself
_CODE = re.compile(r"(?P<file>[^:]+\.(py|ya?ml))(?P<name>:\w+)?")


def absolute(config: RunConfig) -> RunConfig:
    """Return the configuration with absolute paths.

    A text that may be a path, a hub name or a module counts as a path if the file or folder exists.
    """
    return _section(config)


def _section(section: S) -> S:
    changed = {}
    for name, field in type(section).model_fields.items():
        before = getattr(section, name)
        after = _value(before, Use.PLAIN if name in _NAMES else _use(field))
        if after != before:
            changed[name] = after
    return section.model_copy(update=changed) if changed else section


def _use(field: FieldInfo) -> Use:
    """Return the mark of a field, or `CODE` for a field without a mark (a section, or a mapping of sections)."""
    try:
        return Use.CODE if section_of(field) else mark_of(field).use
    except TypeError:
        return Use.CODE


def _value(value: Any, use: Use) -> Any:  # Any: the value of any field
    if isinstance(value, Section):
        return _section(value)
    if isinstance(value, Path):
        return _path(value)
    if isinstance(value, tuple | list):
        return type(value)(_value(each, use) for each in value)
    if isinstance(value, dict):
        return {name: _section(each) if isinstance(each, Section) else each for name, each in value.items()}
    return _text(value, use) if isinstance(value, str) else value


def _text(text: str, use: Use) -> str:
    if use is Use.PLACE and _exists(path := Path(text)):
        return str(_path(path))
    if use is Use.CODE and (code := _CODE.fullmatch(text)) and _exists(file := Path(code["file"])):
        return f"{_path(file)}{code['name'] or ''}"
    return text


def _path(path: Path) -> Path:
    return path.expanduser().absolute()


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().exists()
    except (OSError, RuntimeError):  # the name is too long, or ~user does not exist
        return False
