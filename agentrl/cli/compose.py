"""Builds a `RunConfig` from the command line: Hydra composes the values, pydantic validates them.

No other layer uses Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from agentrl.cli.hints import of_word
from agentrl.config import RunConfig, validate_config
from agentrl.config.validate import Check
from agentrl.errors import ConfigError, Kind, Problem, suggestion
from agentrl.security.environment import remember_environment
from agentrl.utils.shipped import shipped

_OVERRIDE = re.compile(r"[+~]*[\w.@/]+=")

remember_environment()
OmegaConf.register_new_resolver("agentrl", lambda path: str(shipped(path)), replace=True)
"""In a YAML file, `${agentrl:examples/calculator/tool.py}` is the path of a file that is shipped with agentrl."""


def compose_config(
    overrides: Sequence[str], config_dir: Path | None = None, *checks: Check, file: Path | None = None
) -> RunConfig:
    """Compose the configuration from `+experiment=name` and `key=value` overrides.

    Args:
        overrides: in Hydra's grammar. Keys of agentrl need no `+`, because this function adds it.
        config_dir: a folder of your own YAML files, searched before agentrl's folder.
        checks: additional rules, as for `validate_config`.
        file: a YAML file of nested or dotted keys, overridden by `overrides`; it may have Hydra's `defaults` list.

    Raises:
        ConfigError: the configuration cannot be composed or is invalid; one line per mistake.
    """
    if config_dir and not config_dir.is_dir():
        raise ConfigError.keyless(f"--config-dir: there is no folder '{config_dir}'")
    if file and not (file.is_file() and file.suffix == ".yaml"):
        raise ConfigError.keyless(f"--config: expected an existing .yaml file, got '{file}'")
    lines = {override: line for override in overrides if (line := _problem(override, config_dir))}
    unread = {override: Problem("", Kind.OTHER, line) for override, line in lines.items()}
    try:
        values = _composed([override for override in overrides if override not in unread], config_dir, file)
        config = validate_config(values, *checks)
    except ConfigError as error:
        # a missing key may be in one of the invalid overrides, so it is not reported
        further = [each for each in error.problems if not unread or each.kind is not Kind.MISSING]
        raise ConfigError(*unread.values(), *further) from None
    if unread:
        raise ConfigError(*unread.values())
    return config


def _composed(overrides: Sequence[str], config_dir: Path | None, file: Path | None) -> dict[str, object]:
    root, *others = (folder.resolve() for folder in (file and file.parent, config_dir, configs_dir()) if folder)
    search = [f"hydra.searchpath=[{','.join(quoted(f'file://{folder}') for folder in others)}]"]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(root)):
            composed = compose(file.stem if file else None, [*map(_with_plus, overrides), *search])
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError.keyless(f"{f'{file}: ' if file else ''}{_one_line(error, config_dir)}") from None
    except RecursionError:
        raise ConfigError.keyless("the `defaults` list of an experiment leads back to this experiment") from None
    assert isinstance(values, dict)  # the root of a composition is a mapping
    keys = [override.lstrip("+").partition("=")[0] for override in overrides]
    return _undotted({str(key): value for key, value in values.items()}, keys)


def _undotted(values: Mapping[str, object], overridden: Sequence[str]) -> dict[str, object]:
    """Convert `a.b: c` of a file to `a: {b: c}`, unless the command line sets `a`, `a.b` or a key below `a.b`."""
    nested: dict[str, object] = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        set_above = any(f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}.") for each in overridden)
        if "." in key and not set_above:
            nested = _with(nested, key.split("."), value)
    return nested


def _with(values: Mapping[str, object], path: Sequence[str], value: object) -> dict[str, object]:
    name, *rest = path
    inner = values.get(name)
    return {**values, name: _with(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse each `key=value` in Hydra's grammar.

    Raises:
        ConfigError: one line per override that cannot be parsed, with a hint how to quote the override.
    """
    if problems := [line for override in overrides if (line := _syntax_error(override))]:
        raise ConfigError.keyless(*problems)
    return [OverridesParser.create().parse_override(override) for override in overrides]


def _problem(override: str, config_dir: Path | None) -> str | None:
    """Return why an override cannot be composed; None if it can."""
    if override.startswith("~"):
        return _syntax_error(override)
    if "=" not in override or override.startswith("="):
        return of_word(override)
    if line := _syntax_error(override):
        return line
    group, _, name = override.lstrip("+").partition("=")
    if group != "experiment":
        return None
    names = _names(group, config_dir)
    if name.strip("'\"") in names:
        return None
    return (
        f"there is no experiment '{name}': {suggestion(name, names)}"
        if name
        else (f"'{override}' names no experiment; valid names: {', '.join(sorted(names))}")
    )


def _names(group: str, config_dir: Path | None) -> set[str]:
    """Return the names of all YAML files of a group, such as "experiment"."""
    folders = [folder / group for folder in (configs_dir(), config_dir) if folder]
    return {file.stem for folder in folders for file in folder.glob("*.yaml")}


def is_override(word: str) -> bool:
    """Whether a word of the command line is an override, and not the name of a file or model."""
    return bool(_OVERRIDE.match(word)) and not Path(word).exists()


def quoted(text: str) -> str:
    """Return a text as a value in Hydra's grammar."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def configs_dir() -> Path:
    """Folder of agentrl's YAML files: in the wheel, or next to the package in a checkout."""
    return shipped("configs")


def _syntax_error(override: str) -> str | None:
    """Return why an override is not in Hydra's grammar and how to quote the override; None if it is valid."""
    parser = OverridesParser.create()
    key, _, value = override.partition("=")
    quoted = f'{key}="{value}"'
    try:
        parsed = parser.parse_override(override)
        parsed.value()
    except (HydraException, ValueError) as error:
        reason = str(error).partition("\n")[0]
    else:
        if parsed.is_sweep_override():
            return f"'{override}' has several values: write '{key}=[{value}]' for a list, '{quoted}' for text"
        return None
    try:
        parser.parse_override(quoted)
        hint = f"; to pass it as text, quote it twice: '{quoted}'"
    except HydraException:  # the override is not valid with a quoted value either
        hint = ""
    return f"cannot read '{override}': {reason}{hint}"


def _with_plus(override: str) -> str:
    """Add `++` to `a.b=c`, so that Hydra accepts keys that no YAML file contains; add `+` to `experiment=name`."""
    if not (key := re.match(r"[\w.]+(?==)", override)):
        return override
    return f"+{override}" if (configs_dir() / key[0]).is_dir() else f"++{override}"


def _one_line(error: Exception, config_dir: Path | None) -> str:
    text = str(error)
    if missing := re.search(r"(?:In '[^']*': )?Could not find '([\w-]+)/([\w-]+)'", text):
        group, name = missing.groups()
        return f"there is no {group} '{name}': {suggestion(name, _names(group, config_dir))}"
    if unset := re.match(r"Could not delete from config. '([^']*)' does not exist", text):
        return f"'~{unset[1]}': neither an experiment nor an override sets {unset[1]}"
    return " ".join(text.split())
