"""Early checks of a configuration's files, folders and names, before slow imports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from agentrl.capabilities import check_installed, engine_spec
from agentrl.config import RunConfig
from agentrl.config.resolve import Purpose
from agentrl.config.reward import NO_REWARD
from agentrl.data.rows.open import check_dataset
from agentrl.errors import AgentRLError, ConfigError, Kind, Problem, UnknownNameError, problems_in, suggestion
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.folder import check_folder, is_folder
from agentrl.utils.verl_classes import reward_in_place_of

_UNREAD = {"train": (), "rollout": ("data.val_files",), "eval": ("data.train_files",)}
_READ = (
    "model.chat_template",
    "data.custom_cls.path",
    "rollout.agent.agent_loop_config_path",
    "rollout.multi_turn.tool_config_path",
    "rollout.multi_turn.function_tool_path",
    "rollout.multi_turn.interaction_config_path",
    "reward.custom_reward_function.path",
)
"""Keys whose values are files that a run reads."""
_UNREAD_OFFLINE = ("rollout.", "reward.")
"""Sections that a run does not use if it trains on saved rollouts and has no validation files."""


def check_early(config: RunConfig, purpose: Purpose = "train") -> None:
    """Refuse missing files, missing folders, unknown names and a backend that is not installed.

    Args:
        purpose: the command that uses the configuration. Data files that the command does not read may be missing.

    Raises:
        ConfigError: one line per problem.
    """
    problems = [*_datasets(config, purpose), *_models(config, purpose), *_files(config), *_names(config)]
    if purpose == "train":
        problems += _backend(config.actor.backend)
    if problems:
        raise ConfigError(*problems)


def check_data_early(config: RunConfig) -> None:
    """Refuse missing files and unknown rewards of `agentrl data check`. A model folder without weights is accepted.

    Raises:
        ConfigError: one line per problem.
    """
    if problems := [*_datasets(config, "train"), *_folders(config), *_files(config), *_rewards(config)]:
        raise ConfigError(*problems)


def check_model_early(config: RunConfig) -> None:
    """Refuse a configuration of `agentrl chat` that names a missing model folder or missing files.

    Raises:
        ConfigError: one line per problem.
    """
    if problems := [*_folders(config), *_files(config)]:
        raise ConfigError(*problems)


def _folders(config: RunConfig) -> Iterator[Problem]:
    for key in ("model.path", "model.tokenizer_path"):
        path = _value(config, key)
        if path is not None and is_folder(path) and not _is_dir(path):
            yield Problem(key, Kind.NOT_FOUND, f"{key}: there is no folder '{path}'")


def _backend(name: str) -> list[Problem]:
    try:
        check_installed(name)
    except ConfigError as error:
        return error.problems
    return []


def _datasets(config: RunConfig, purpose: Purpose) -> Iterator[Problem]:
    if config.data.custom_cls.path is not None:
        return  # the custom class interprets the names of the data files
    mode = config.trainer.mode
    unread = {"val_only": "eval", "rollout_only": "rollout", "train_only": "eval"}.get(mode, purpose)
    for key in ("data.train_files", "data.val_files"):
        for name in () if key in _UNREAD[unread] else _value(config, key):
            yield from _problem(key, partial(check_dataset, name))


def _models(config: RunConfig, purpose: Purpose) -> Iterator[Problem]:
    keys = ["model.path", "model.tokenizer_path", "model.lora_adapter_path"]
    keys += ["ref.path", "critic.path"] if purpose == "train" else []
    for key in keys:
        path = _value(config, key)
        if path is None or not is_folder(path):
            continue
        if key == "model.tokenizer_path" or _holds_adapter(path):
            if not _is_dir(path):
                yield Problem(key, Kind.NOT_FOUND, f"{key}: there is no folder '{path}'")
        elif key == "model.lora_adapter_path":
            yield Problem(key, Kind.NOT_FOUND, f"{key}: there is no adapter_config.json in '{path}'")
        else:
            yield from _problem(key, partial(check_folder, Path(path), key), "")


def _holds_adapter(path: str) -> bool:
    """Whether the folder contains an adapter, valid or not. Loading reports the error of an invalid adapter."""
    try:
        return find_adapter(path) is not None
    except ConfigError:
        return True


def _files(config: RunConfig) -> Iterator[Problem]:
    offline = config.trainer.mode == "train_only" and not config.data.val_files
    for key in (key for key in _READ if not (offline and key.startswith(_UNREAD_OFFLINE))):
        path = _value(config, key)
        if path is not None and not _is_file(path):
            yield _no_file(key, Path(path))
    script = config.rollout.script_path
    if script is not None and "script_path" in engine_spec(config.rollout.engine).options:
        file = Path(str(script).rpartition(":")[0] or script)
        if file.suffix == ".py" and not _is_file(file):
            yield _no_file("rollout.script_path", file)
    saved = config.trainer.saved_rollouts
    if config.trainer.mode == "train_only" and saved is not None and not _is_dir(saved):
        yield _not_found("trainer.saved_rollouts", f"there is no '{saved}'")
    start = config.trainer.resume_from_path
    if config.trainer.resume_mode == "path" and start is not None and not _is_dir(start):
        yield _not_found("trainer.resume_from_path", f"there is no folder '{start}'")


def _names(config: RunConfig) -> Iterator[Problem]:
    from agentrl.agent_loops.base import agent_loops
    from agentrl.agent_loops.loading import refuse_strip
    from agentrl.algos.registries import ADVANTAGE_ESTIMATORS, POLICY_LOSSES
    from agentrl.chat.parsers.names import AUTO, tool_parsers
    from agentrl.tools.environments.spec import check_environment

    checks: dict[str, Callable[[str], None]] = {
        "rollout.agent.default_agent_loop": agent_loops.check,
        "rollout.multi_turn.format": lambda name: None if name == AUTO else tool_parsers.check(name),
        "rollout.multi_turn.environment": check_environment,
        "algorithm.adv_estimator": ADVANTAGE_ESTIMATORS.check,
        "actor.policy_loss.loss_mode": POLICY_LOSSES.check,
    }
    if config.rollout.agent.agent_loop_config_path is not None:
        del checks["rollout.agent.default_agent_loop"]  # this file may define additional loops
    if config.algorithm.preset.family == "preference":
        del checks["actor.policy_loss.loss_mode"]  # preference losses are in another registry
    for key, check in checks.items():
        if (name := _value(config, key)) is not None:
            yield from _problem(key, partial(check, name))
    yield from _rewards(config)
    name = config.rollout.agent_loop
    if config.rollout.multi_turn.thinking == "strip" and agent_loops.is_builtin(name):
        yield from _problem("rollout.multi_turn.thinking", partial(refuse_strip, agent_loops.get(name), name), "")


def _rewards(config: RunConfig) -> Iterator[Problem]:
    named = {f"reward.components.{name}": each.reward for name, each in config.reward.components.items()}
    if not named and config.reward.custom_reward_function.path is None:
        named = {"reward.name": config.reward.name}
    for key, name in named.items():
        yield from _problem(key, partial(check_reward, name))


def check_reward(name: str) -> None:
    """Refuse a reward that is neither an existing file nor a known name, without loading it.

    Raises:
        UnknownNameError: the message contains the nearest valid name, or the missing file.
    """
    from agentrl.rewards.base import reward_models
    from agentrl.rewards.builtin.registry import rewards

    if name.endswith(".py") and not _is_file(name):
        raise UnknownNameError(f"there is no file '{name}'")
    if name not in ("auto", NO_REWARD, *reward_models.names()):
        rewards.check(name)


def _problem(key: str, check: Callable[[], object], prefix: str | None = None) -> Iterator[Problem]:
    """Yield the problem that `check` raises. `prefix` replaces the key at the start of the message."""
    try:
        check()
    except UnknownNameError as error:
        yield _not_found(key, str(error))
    except AgentRLError as error:
        before = f"{key}: " if prefix is None else prefix
        yield from (Problem(key, Kind.WRONG_VALUE, before + each.text) for each in problems_in(error))


def _not_found(key: str, text: str) -> Problem:
    return Problem(key, Kind.NOT_FOUND, f"`{key}`: {text}")


def _value(config: RunConfig, key: str):  # type: ignore[no-untyped-def]  # the type depends on the key
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _no_file(key: str, path: Path) -> Problem:
    """Return the problem of a missing file. Suggest a file with a similar name in the same folder, if there is one."""
    missing = f"there is no file '{path}'"
    if _is_dir(path):
        return _not_found(key, f"expected a file, '{path}' is a folder")
    if reward := reward_in_place_of(str(path)):
        return _not_found(
            key, f"{missing}: remove this key and set reward.name={reward}, which grades the same answers"
        )
    if not _is_dir(path.parent):
        return _not_found(key, missing)
    near = suggestion(path.name, (file.name for file in path.parent.iterdir() if file.suffix == path.suffix))
    return _not_found(key, f"{missing}: {near}" if near.startswith("did you mean") else missing)


# os.path instead of pathlib, which raises on names that are too long


def _is_file(path: str | Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def _is_dir(path: str | Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112
