"""verl's command line: verl's keys, grammar and YAML files for a run of agentrl."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from agentrl.cli.compose import parse_overrides
from agentrl.compat.verl.keys.table import PPO, KeyTable
from agentrl.compat.verl.keys.translate import flattened, nested, translate, verl_key
from agentrl.config import RunConfig, validate_config
from agentrl.config.rules.combinations import idle_options
from agentrl.config.validate import Check
from agentrl.errors import ConfigError, suggestion


def read_verl(
    overrides: Sequence[str], folder: Path | None = None, name: str | None = None, table: KeyTable = PPO
) -> dict[str, object]:
    """Read a YAML file for verl and `a.b=c` overrides; return the given keys as nested values, interpolations resolved.

    Args:
        overrides: in Hydra's grammar; a leading `+` or `++` is allowed and has no effect.
        folder, name: location of a YAML file, as in Hydra's --config-path and --config-name.
        table: key table of the verl program.

    Raises:
        ConfigError: the overrides or the file cannot be read.
    """
    try:
        parsed = parse_overrides(overrides)
        given = OmegaConf.merge(_file(folder, name, table), *map(_override, parsed))
        complete = OmegaConf.to_container(OmegaConf.merge(nested(table.defaults), given), resolve=True)
        keys = dict(flattened(cast("dict[str, object]", OmegaConf.to_container(given)), table))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError.keyless(" ".join(str(error).split())) from None
    values = dict(flattened(cast("dict[str, object]", complete), table))
    return nested({key: value for key, value in values.items() if any(part in keys for part in _upwards(key))})


def verl_config(values: Mapping[str, object], *checks: Check, table: KeyTable = PPO) -> RunConfig:
    """Convert verl's nested keys to a validated configuration. Ignored keys are listed on stderr, by reason.

    Args:
        checks: additional rules, as for `validate_config`.
        table: key table of the verl program.

    Raises:
        ConfigError: the configuration is invalid or not supported; the message uses verl's keys.
    """
    draft = translate(values, table)
    shown = verl_key(draft.source_keys, table)
    try:
        for problem in idle_options(validate_config(nested(draft.values))):
            draft.values.pop(problem.key, None)  # verl commands often contain options without effect
            if draft.source_keys.get(problem.key) in draft.given:
                draft.notices.append(problem.line(shown))
        config = validate_config(nested(draft.values), *checks)
    except ConfigError as error:
        raise error.shown_as(shown) from None
    for notice in draft.lines():
        print(f"agentrl: notice: {notice}", file=sys.stderr)
    return config


def _upwards(key: str) -> Iterator[str]:
    """Yield a key and its parent sections: an interpolation that sets a section sets all keys below it."""
    parts = key.split(".")
    return (".".join(parts[:length]) for length in range(len(parts), 0, -1))


def _override(override):  # type: ignore[no-untyped-def]  # Hydra's Override; hydra has no types
    key = override.key_or_group
    if override.is_sweep_override():
        raise ConfigError.keyless(f"'{key}' has several values: write them as a list, {key}=[a,b]")
    if override.type == OverrideType.DEL:
        raise ConfigError.keyless(f"'~{key}': a key cannot be removed; set another value instead")
    return OmegaConf.create(nested({key: override.value()}))


def _file(folder: Path | None, name: str | None, table: KeyTable) -> DictConfig:
    """Read the keys of the YAML file. Its `defaults` may name only files of verl whose values are in the table."""
    stem = (name or table.base).removesuffix(".yaml")
    path = (folder or Path("config")) / f"{stem}.yaml"
    own: dict[str, Mapping[str, object]] = {table.base: {}, **table.variants}
    if stem in own and (folder is None or (name is not None and not path.is_file())):
        return OmegaConf.create(nested(own[stem]))
    if not path.is_file():
        names = [file.stem for file in path.parent.glob("*.yaml")]
        raise ConfigError.keyless(f"there is no file '{path}': {suggestion(path.stem, names)}")
    content = OmegaConf.load(path)
    if not isinstance(content, DictConfig):
        raise ConfigError.keyless(f"{path}: expected keys and values")
    bases = [base for base in content.pop("defaults", []) if base != "_self_"]
    for base in bases:
        if base not in own:
            raise ConfigError.keyless(f"{path}: builds on '{base}'; only {', '.join(own)} are known here")
    content.pop("hydra", None)
    merged = OmegaConf.merge(*(nested(own[base]) for base in bases), content)
    assert isinstance(merged, DictConfig)  # because only mappings were merged
    return merged
