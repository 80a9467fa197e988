"""Translation of verl's keys to agentrl's: keys are mapped, ignored with a notice, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from agentrl.compat.verl.keys.draft import Draft
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped
from agentrl.compat.verl.keys.table import PPO, KeyTable, own_keys
from agentrl.errors import ConfigError, Kind, Problem, suggestion


def translate(nested: Mapping[str, object], table: KeyTable = PPO) -> Draft:
    """Translate verl's keys, nested as in verl's YAML files; missing keys get verl's defaults.

    Args:
        table: key table of the verl program.

    Raises:
        ConfigError: unknown keys, unsupported values, contradicting keys; one line each.
    """
    draft = Draft({key: value for key, value in flattened(nested, table) if not _class_of_verls(key, value)})
    problems: list[Problem] = []
    for key, default in table.defaults.items():
        if key not in draft.given:
            problems += _take(draft, table, key, default)
    for key, value in draft.given.items():
        problems += _take(draft, table, key, value)
    if problems:
        raise ConfigError(*problems)
    table.adjust(draft)
    return draft


def flattened(nested: Mapping[str, object], table: KeyTable = PPO, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted keys and their values. The table decides which mappings are values."""
    for name, value in nested.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not table.is_leaf(key):
            yield from flattened(value, table, f"{key}.")
        else:
            yield key, value


def nested(values: Mapping[str, object]) -> dict[str, object]:
    """Convert dotted keys to nested mappings."""
    tree: dict[str, object] = {}
    for key, value in values.items():
        *sections, leaf = key.split(".")
        branch = tree
        for section in sections:
            inner = branch.setdefault(section, {})
            assert isinstance(inner, dict)  # a key of the table is never also a section
            branch = inner
        branch[leaf] = value
    return tree


def verl_key(source_keys: Mapping[str, str], table: KeyTable = PPO) -> Callable[[str], str]:
    """Return a function that maps an agentrl key to the key that an error message names.

    The message names the key that set the value. If no key did, it names the verl key in `table` that is mapped to the
    agentrl key. If there is none, it names the agentrl key.
    """
    mapped = [row for row in reversed(table.rows) if isinstance(row, Mapped) and isinstance(row.targets, str)]
    names = {row.targets: row.key for row in mapped} | dict(source_keys)
    return lambda key: names.get(key, key)


def _class_of_verls(key: str, value: object) -> bool:
    """Whether the key is a section's `_target_`, with a class of verl as value; verl's YAML files contain such keys."""
    return key.endswith("_target_") and str(value).startswith("verl.")


def _take(draft: Draft, table: KeyTable, key: str, value: object) -> list[Problem]:
    """Add one key to the draft, and return the problems with this key."""
    row = table.find(key)
    if row is None:
        return [Problem(key, Kind.UNKNOWN_KEY, f"unknown key `{key}`: {suggestion(key, _suggestable(table))}")]
    if isinstance(row, Mapped):
        return _map(draft, row, value)
    if isinstance(row, Fixed) and not row.allows(value):
        return [Problem(key, Kind.NOT_SUPPORTED, f"`{key}={value}` is not supported: {row.instead}")]
    if why := row.why if isinstance(row, Hint) else row.notice:
        draft.idle.setdefault(why, []).append(key)
    return []


def _map(draft: Draft, row: Mapped, value: object) -> list[Problem]:
    if value is None:  # null means "not given": drop verl's default, so that agentrl's default applies
        for target in row.names:
            if draft.source_keys.get(target) not in draft.given:  # the user may have set the target by another verl key
                draft.values.pop(target, None)
        return []
    try:
        translated = row.values(value)
    except (ConfigError, TypeError, ValueError, OverflowError) as error:
        default = "" if row.key in draft.given else f" (verl's default {value})"
        return [Problem(row.key, Kind.WRONG_VALUE, f"`{row.key}`{default}: {error}")]
    for target, item in translated.items():
        other = draft.source_keys.get(target)
        if other in draft.given and other != row.key and row.key in draft.given and draft.values.get(target) != item:
            return [Problem(row.key, Kind.CONFLICT, f"`{other}` and `{row.key}` set one option to different values")]
        draft.values[target], draft.source_keys[target] = item, row.key
    return []


def _suggestable(table: KeyTable) -> set[str]:
    return {key.removesuffix(".*") for key in table.by_key} | own_keys()
