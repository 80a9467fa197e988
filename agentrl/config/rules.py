"""Combinations that some chosen part would not honour: refused rather than ignored."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.base import Section
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

_TORCH_ENGINE = ("device", "dtype", "max_num_seqs", "max_kv_tokens", "deterministic")
_RATIO_OPTIONS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "use_kl_loss")


def check_rules(config: RunConfig) -> None:
    """Raise a ConfigError that names every option which would have no effect or make the numbers wrong."""
    problems = [*_not_built(config), *_ignored(config), *_wrong(config)]
    if problems:
        raise ConfigError("\n".join(problems))


def check_training(config: RunConfig, *, groups_of_one: bool = False) -> None:
    """The rules that hold for training alone. `groups_of_one` lets them pass: their advantage is 0."""
    problems = list(_wrong_in_training(config, groups_of_one))
    if problems:
        raise ConfigError("\n".join(problems))


def check_evaluation(config: RunConfig) -> None:
    """The rules that hold for evaluation alone."""
    if not config.data.val_files:
        raise ConfigError("'data.val_files' must be given")


def _not_built(config: RunConfig) -> Iterator[str]:
    if config.rollout.engine == "sglang":
        yield "'rollout.engine=sglang' is not in this version: use 'rollout.engine=torch'"
    if config.actor.backend == "megatron":
        yield "'actor.backend=megatron' is not in this version: use 'actor.backend=torch'"


def _ignored(config: RunConfig) -> Iterator[str]:
    rollout, actor, optim = config.rollout, config.actor, config.actor.optim
    if rollout.engine != "torch":
        yield from _unused("rollout", rollout, _TORCH_ENGINE, "'rollout.engine=torch'")
    if rollout.engine != "scripted":
        yield from _unused("rollout", rollout, ("script_path",), "'rollout.engine=scripted'")
    if config.algorithm.name == "sft":
        yield from _unused("actor", actor, _RATIO_OPTIONS, "live rollouts ('algorithm.name=grpo')")
        yield from _unused("rollout", rollout, ("n", "temperature"), "live rollouts ('algorithm.name=grpo')")
        yield from _unused("algorithm", config.algorithm, ("norm_adv_by_std_in_grpo",), "'algorithm.name=grpo'")
    if not actor.use_kl_loss:
        yield from _unused("ref", config.ref, ("path",), "'actor.use_kl_loss=true'")
    custom = config.reward.custom_reward_function
    if custom.path is None:
        yield from _unused("reward.custom_reward_function", custom, ("name",), "a 'path' beside it")
    else:
        yield from _unused("reward", config.reward, ("name",), "a built-in reward: a custom_reward_function is given")
    if optim.name != "muon":
        yield from _unused("actor.optim", optim, ("muon_lr", "muon_momentum"), "'actor.optim.name=muon'")
    if optim.lr_scheduler_type == "constant":
        yield from _unused("actor.optim", optim, ("min_lr_ratio", "total_updates"), "a schedule that runs down")
    if not rollout.val_kwargs.do_sample:
        sampling = ("temperature", "top_p", "top_k")
        yield from _unused("rollout.val_kwargs", rollout.val_kwargs, sampling, "'rollout.val_kwargs.do_sample=true'")


def _unused(where: str, section: Section, options: tuple[str, ...], need: str) -> Iterator[str]:
    for option in options:
        if getattr(section, option) != type(section).model_fields[option].get_default():
            yield f"'{where}.{option}' has no effect without {need}"


def _wrong(config: RunConfig) -> Iterator[str]:
    if config.rollout.engine == "scripted" and config.rollout.script_path is None:
        yield "'rollout.engine=scripted' needs 'rollout.script_path'"
    if config.rollout.val_kwargs.n > 1 and not config.rollout.val_kwargs.do_sample:
        yield "'rollout.val_kwargs.n' above 1 repeats one greedy rollout: set 'rollout.val_kwargs.do_sample=true'"


def _wrong_in_training(config: RunConfig, groups_of_one: bool) -> Iterator[str]:
    rollout, trainer = config.rollout, config.trainer
    if not config.data.train_files:
        yield "'data.train_files' must be given"
    if config.algorithm.name == "grpo" and rollout.n < 2 and not groups_of_one:
        yield "'rollout.n=1' gives every group advantage 0 under grpo: set 'rollout.n' to 2 or more"
    for option in ("top_p", "top_k", "min_p"):
        if getattr(rollout, option) != type(rollout).model_fields[option].get_default():
            yield f"'rollout.{option}' changes the distribution that is sampled: training on it would be biased"
    if trainer.stop_when and not (config.data.val_files and trainer.test_freq):
        yield "'trainer.stop_when' needs 'data.val_files' and 'trainer.test_freq' above 0"
    if trainer.log_val_generations and not (config.data.val_files and set(trainer.logger) - {"console"}):
        yield "'trainer.log_val_generations' needs 'data.val_files' and a logger other than console"
    mini_batch = config.actor.ppo_mini_batch_size
    if mini_batch and config.data.train_batch_size % mini_batch:
        yield f"'actor.ppo_mini_batch_size={mini_batch}' must divide 'data.train_batch_size'"
