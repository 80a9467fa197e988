"""From the command line to a `RunConfig`: Hydra composes, pydantic judges. Hydra ends here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl.config import RunConfig, validate_config
from agentrl.errors import ConfigError, suggestion


def compose_config(overrides: Sequence[str], config_dir: Path | None = None) -> RunConfig:
    """The configuration that `+experiment=name` and `key=value` overrides describe.

    Args:
        overrides: in Hydra's grammar. A key of ours needs no `+`: every key exists, by its default.
        config_dir: a folder of the user's own YAML files, looked in before agentrl's.

    Raises:
        ConfigError: what Hydra cannot compose, or what `validate_config` refuses.
    """
    if config_dir and not config_dir.is_dir():
        raise ConfigError(f"--config-dir: there is no folder '{config_dir}'")
    parse_overrides(overrides)
    search = [f"hydra.searchpath=[file://{config_dir.resolve()}]"] if config_dir else []
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(configs_dir())):
            composed = compose("config", [*map(_ours, overrides), *search])
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: a group named by a number
        raise ConfigError(_one_line(error, config_dir)) from None
    assert isinstance(values, dict)  # the root of a composition is a mapping
    return validate_config({str(key): value for key, value in values.items()})


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """What each `key=value` says, in Hydra's grammar.

    Raises:
        ConfigError: names the one that cannot be read, and how to quote it.
    """
    return [_parsed(override) for override in overrides]


def configs_dir() -> Path:
    """Where agentrl's own YAML files are: in the wheel, or beside the package in a checkout."""
    package = Path(str(files("agentrl")))
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def _parsed(override: str) -> Override:
    parser = OverridesParser.create()
    key, _, value = override.partition("=")
    quoted = f'{key}="{value}"'
    try:
        parsed = parser.parse_override(override)
    except HydraException as error:
        reason = str(error).partition("\n")[0]
    else:
        if parsed.is_sweep_override():
            raise ConfigError(f"'{override}' is several values: a list is '{key}=[{value}]', a text '{quoted}'")
        return parsed
    try:
        parser.parse_override(quoted)
        hint = f": if it is meant as text, quote it twice, '{quoted}'"
    except HydraException:  # not the value alone is wrong
        hint = ""
    raise ConfigError(f"cannot read '{override}': {reason}{hint}")


def _ours(override: str) -> str:
    """`a.b=c` sets a key that no YAML file need name, so Hydra must be told that it may add it."""
    if not (key := re.match(r"[\w.]+(?==)", override)):
        return override
    return f"+{override}" if (configs_dir() / key[0]).is_dir() else f"++{override}"


def _one_line(error: Exception, config_dir: Path | None) -> str:
    text = str(error)
    if missing := re.search(r"(?:In '[^']*': )?Could not find '([\w-]+)/([\w-]+)'", text):
        group, name = missing.groups()
        folders = [folder / group for folder in (configs_dir(), config_dir) if folder]
        names = [file.stem for folder in folders for file in folder.glob("*.yaml")]
        return f"there is no {group} '{name}': {suggestion(name, names)}"
    return " ".join(text.split())
