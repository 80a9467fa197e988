"""Configuration and device of a saved run, for a plan.

The saved configuration may name code and servers; this code is not executed, and these servers are not contacted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from agentrl.capabilities import ENGINES
from agentrl.config.rollout import option_name
from agentrl.config.rules.backend import wrong_on_several_devices
from agentrl.config.rules.combinations import SERVER_SIZES
from agentrl.config.rules.megatron import wrong_in_layout
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.folder import is_folder
from agentrl.plan.counts import NO_MODEL
from agentrl.replay.saved_run import open_saved
from agentrl.replay.trusted_config import lookup, trusted_values
from agentrl.run_folder.saved_environment import ENVIRONMENT_FILE, read_environment

NOTHING: Mapping[str, object] = {}
_SGLANG = "rollout.sglang"
_MAX_URLS = 1024


def config_of_run(where: str, changes: Mapping[str, object] = NOTHING) -> RunConfig:
    """Return the configuration of a saved run, without values that would run code or contact servers.

    Built-in engines and the sizes of servers are kept, because a plan starts no server. Addresses become placeholders.

    Args:
        changes: values that replace saved values, under dotted keys.

    Raises:
        DataError: there is no run.
        ConfigError: the saved configuration or a change is invalid; one line per mistake.
    """
    saved = open_saved(where).config
    values = trusted_values(saved)
    for key, value in {"model.path": _model_folder(saved), **_engines(saved), **changes}.items():
        _put(values, key.split("."), value)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        mistakes = [f"'{'.'.join(map(str, each['loc']))}': {each['msg']}" for each in error.errors()]
        raise ConfigError.keyless(*(f"configuration of '{where}', {mistake}" for mistake in mistakes)) from None
    if problems := [*wrong_in_layout(config), *wrong_on_several_devices(config)]:
        raise ConfigError(*problems)
    return config


def device_of_run(where: str) -> str | None:
    """Return the name of the device on which a saved run trained; None if it is unknown."""
    folder = open_saved(where).folder
    found = lookup(read_environment(folder / ENVIRONMENT_FILE), "devices.actor") if folder else None
    return found if isinstance(found, str) else None


def _engines(saved: Mapping[str, object]) -> dict[str, object]:
    """Return the engine of a saved run, and the sizes of its servers."""
    engine, urls = lookup(saved, "rollout.engine"), lookup(saved, f"{_SGLANG}.urls")
    args = lookup(saved, f"{_SGLANG}.server_args")
    found: dict[str, object] = {}
    if isinstance(engine, str) and ENGINES.is_builtin(engine):
        found["rollout.engine"] = engine
    if isinstance(urls, list):
        found[f"{_SGLANG}.urls"] = [f"http://server-{number}" for number in range(min(len(urls), _MAX_URLS))]
    if isinstance(args, Mapping):
        named = {option_name(key): value for key, value in args.items()}
        sizes = {key: value for key, value in named.items() if key in SERVER_SIZES and isinstance(value, int)}
        found[f"{_SGLANG}.server_args"] = sizes
    return found


def _model_folder(saved: Mapping[str, object]) -> str:
    """Return the model's folder, of which only `config.json` is read. A hub name in a saved run is not used."""
    path = lookup(saved, "model.path")
    return path if isinstance(path, str) and is_folder(path) else NO_MODEL


def _put(values: dict[str, object], path: Sequence[str], value: object) -> None:
    name, *rest = path
    if not rest:
        values[name] = value
        return
    inner = values.get(name)
    values[name] = inner = inner if isinstance(inner, dict) else {}
    _put(inner, rest, value)
