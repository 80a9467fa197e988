"""Rules for combinations of keys: options that would be ignored are refused."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.capabilities import ENGINE_OPTIONS, engine_spec, engines_with
from agentrl.config.actor import OptimConfig
from agentrl.config.reward import NO_REWARD
from agentrl.config.rollout import COMPACTION, SUB_AGENT, RolloutConfig
from agentrl.config.rules.algorithm import (
    LIVE,
    idle_in_algorithm,
    idle_in_critic,
    ignored_by_algorithm,
    wrong_in_critic,
    wrong_in_sampling,
)
from agentrl.config.rules.backend import ignored_by_backend, wrong_on_several_devices
from agentrl.config.rules.data import ignored_in_data
from agentrl.config.rules.harness import wrong_with_harness
from agentrl.config.rules.megatron import wrong_in_layout
from agentrl.config.rules.reward import idle_in_reward, ignored_by_reward, missing_tools
from agentrl.config.rules.unused import every, given, unused, unused_with, wrong
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind, Problem

SERVER_SIZES = {"tp_size", "pp_size", "dp_size", "enable_dp_attention"}
"""Keys of `rollout.sglang.server_args` that are allowed with `urls`, because `agentrl plan` needs these sizes."""
_OF_STARTED_SERVERS = ("dtype", "max_num_seqs", "max_kv_tokens")
_TRUNCATIONS = ("top_p", "top_k", "min_p")

_IN_FLIGHT = ("max_staleness", "over_sampling")
# schedule keys (such as save_freq) are not listed, so that users can append trainer.mode to a training command
_NOT_IN_MODE: dict[str, tuple[str, ...]] = {
    "val_only": ("stop_when", "save_best", "profile_steps", "resume_from_path", *_IN_FLIGHT),
    "rollout_only": ("stop_when", "save_best", "log_val_generations", "resume_from_path", *_IN_FLIGHT),
    "train_only": _IN_FLIGHT,
}


def check_rules(config: RunConfig) -> None:
    """Raise a ConfigError that lists every option that has no effect or makes results wrong."""
    problems = [*_ignored(config), *_wrong(config)]
    if problems:
        raise ConfigError(*problems)


def check_training(config: RunConfig, *, groups_of_one: bool = False) -> None:
    """Check the rules for training. `groups_of_one` allows groups of one rollout, whose advantage is 0."""
    problems = [*_wrong_in_training(config, groups_of_one), *_wrong_in_mode(config), *idle_options(config)]
    problems += [*wrong_in_sampling(config), *wrong_in_critic(config)]
    if problems:
        raise ConfigError(*problems)


def check_evaluation(config: RunConfig) -> None:
    """Check the rules for evaluation."""
    if not config.data.val_files:
        raise ConfigError(wrong("data.val_files", "must be given", Kind.MISSING))
    if config.reward.name == NO_REWARD:
        why = "an evaluation needs a score; `agentrl generate` needs none"
        raise ConfigError(Problem("reward.name", Kind.CONFLICT, f"`reward.name=none`: {why}"))


def check_generation(config: RunConfig) -> None:
    """Check the rules for generation. Options that only training uses are allowed and ignored."""
    if problems := list(_wrong_in_generation(config)):
        raise ConfigError(*problems)


def idle_options(config: RunConfig) -> list[Problem]:
    """Return one problem per training option without effect.

    Only values that differ from the default count as given, because a saved config.yaml contains every key.
    """
    return list({problem.key: problem for problem in _idle(config)}.values())


def _ignored(config: RunConfig) -> Iterator[Problem]:
    rollout = config.rollout
    yield from _ignored_by_engine(rollout)
    yield from ignored_by_backend(config)
    yield from ignored_by_algorithm(config)
    yield from ignored_by_reward(config.reward)
    yield from wrong_with_harness(rollout)
    yield from ignored_in_data(config)
    for where, optim in (("actor.optim", config.actor.optim), ("critic.optim", config.critic.optim)):
        yield from _ignored_by_optimizer(where, optim)
    if not rollout.val_kwargs.do_sample:
        sampling = ("temperature", "top_p", "top_k")
        yield from unused("rollout.val_kwargs", rollout.val_kwargs, sampling, "`rollout.val_kwargs.do_sample=true`")


def _ignored_by_optimizer(where: str, optim: OptimConfig) -> Iterator[Problem]:
    if optim.name != "muon":
        yield from unused(where, optim, ("muon_lr", "muon_momentum"), f"`{where}.name=muon`")
    if optim.lr_warmup_steps:
        yield from unused(where, optim, ("lr_warmup_steps_ratio",), f"`{where}.lr_warmup_steps=0`")
    if optim.lr_scheduler_type == "constant":
        yield from unused(where, optim, ("min_lr_ratio", "total_updates"), "a decaying schedule")


def _ignored_by_engine(rollout: RolloutConfig) -> Iterator[Problem]:
    sglang, read = rollout.sglang, engine_spec(rollout.engine).options
    for option in (each for each in ENGINE_OPTIONS if each not in read and each != "sglang"):
        yield from unused("rollout", rollout, (option,), engines_with(option))
    if "sglang" not in read:
        yield from unused("rollout.sglang", sglang, every(sglang), engines_with("sglang"))
        return
    if rollout.weight_sync == "delta":
        other = "`rollout.weight_sync=delta`, which sends weights in its own way"
        yield from unused_with("rollout.sglang", sglang, ("weight_transfer",), other)
    if sglang.urls:
        need = "servers that the run starts itself: `rollout.sglang.urls` lists servers that already run"
        started = ("num_replicas", "env", "max_restarts")
        yield from unused("rollout", rollout, _OF_STARTED_SERVERS, need)
        yield from unused("rollout.sglang", sglang, started, need)
        for option in sorted(sglang.options.keys() - SERVER_SIZES):
            key = f"rollout.sglang.server_args.{option}"
            text = f"`{key}` has no effect without {need}; with `urls`, only these keys are allowed: "
            yield Problem(key, Kind.UNUSED, text + ", ".join(sorted(SERVER_SIZES)))
        if sglang.router_url and rollout.routed_experts:
            yield Problem(
                "rollout.sglang.router_url",
                Kind.CONFLICT,
                "`rollout.sglang.router_url`: sglang-router does not forward `rollout.routed_experts`: remove one",
            )
    else:
        yield from unused("rollout.sglang", sglang, ("router_url",), "`rollout.sglang.urls`, the servers behind it")


def _idle(config: RunConfig) -> Iterator[Problem]:
    rollout, actor, data, trainer, model = config.rollout, config.actor, config.data, config.trainer, config.model
    yield from idle_in_reward(config.reward)
    turns = rollout.multi_turn
    tools = (turns.tool_config_path, turns.function_tool_path, turns.environment, *trainer.python_objects)
    yield from missing_tools(config.reward, has_tools=any(tools))
    if model.lora_adapter_path is not None:
        yield from unused("model", model, ("target_modules", "exclude_modules"), "a new adapter (`model.lora_rank`)")
    elif not model.lora_rank:
        shape = ("lora_alpha", "target_modules", "exclude_modules")
        yield from unused("model", model, shape, "`model.lora_rank` above 0")
    if rollout.multi_turn.interaction_config_path is None:
        need = "`rollout.multi_turn.interaction_config_path`"
        yield from unused("rollout.multi_turn", rollout.multi_turn, ("max_user_turns",), need)
    for name in (COMPACTION, SUB_AGENT):
        if rollout.agent_loop != name:
            section, need = getattr(turns, name), f"`rollout.agent.default_agent_loop={name}`"
            yield from unused(f"rollout.multi_turn.{name}", section, every(section), need)
    if not actor.use_kl_loss:
        yield from unused("actor", actor, ("kl_loss_coef", "kl_loss_type"), "`actor.use_kl_loss=true`")
    yield from idle_in_algorithm(config)
    yield from idle_in_critic(config)
    if None not in (actor.clip_ratio_low, actor.clip_ratio_high):
        both = "`actor.clip_ratio_low` and `actor.clip_ratio_high`"
        yield from unused_with("actor", actor, ("clip_ratio",), both)
    if not data.shuffle:
        yield from unused("data", data, ("seed",), "`data.shuffle=true`")
    if trainer.total_training_steps is not None:
        yield from unused_with("trainer", trainer, ("total_epochs",), "`trainer.total_training_steps`")
    if not data.val_files and "val_files" not in data.model_fields_set:  # no error if the user sets `[]`
        yield from unused("trainer", trainer, ("test_freq",), "`data.val_files`")
        yield from unused("rollout.val_kwargs", rollout.val_kwargs, every(rollout.val_kwargs), "`data.val_files`")
    if not data.val_files:
        yield from unused("trainer", trainer, ("save_best",), "`data.val_files`")
    if trainer.mode != "rollout_only":
        yield from unused("data", data, ("output_path",), "`trainer.mode=rollout_only` (`agentrl generate`)")
    if not config.algorithm.live:
        yield from unused("trainer", trainer, _IN_FLIGHT, LIVE)
    if not any(given(trainer, option) for option in _IN_FLIGHT):
        need = "`trainer.max_staleness` or `trainer.over_sampling` above 0: else no rollouts run during a weight update"
        yield from unused("rollout", rollout, ("weight_update_mode",), need)
    if not trainer.profile_steps:
        yield from unused("trainer", trainer, ("profiler",), "`trainer.profile_steps`")
    yield from unused("trainer", trainer, _NOT_IN_MODE.get(trainer.mode, ()), "`trainer.mode=train`")
    if trainer.resume_mode != "path":
        yield from unused("trainer", trainer, ("resume_from_path",), "`trainer.resume_mode=path`")
    if trainer.mode != "train_only":
        yield from unused("trainer", trainer, ("saved_rollouts",), "`trainer.mode=train_only`")


def _wrong(config: RunConfig) -> Iterator[Problem]:
    num_weights, num_files = len(config.data.dataset_weights), len(config.data.train_files)
    if num_weights and num_files and num_weights != num_files:
        yield wrong("data.dataset_weights", f"needs one weight per train file: {num_files}, not {num_weights}")
    engine = config.rollout.engine
    if "script_path" in engine_spec(engine).options and config.rollout.script_path is None:
        yield wrong("rollout.engine", "needs `rollout.script_path`", Kind.MISSING, value=engine)
    if config.actor.routed_experts and config.rollout.routed_experts:
        text = "replays the policy's choice of experts, `rollout.routed_experts` the engine's: remove one of the two"
        yield wrong("actor.routed_experts", text, Kind.CONFLICT, value="true")
    yield from wrong_on_several_devices(config)
    yield from wrong_in_layout(config)
    if (output := config.data.output_path) and output.suffix != ".parquet":
        yield wrong("data.output_path", f"must name a Parquet file, not '{output}'")
    if config.rollout.val_kwargs.n > 1 and not config.rollout.val_kwargs.do_sample:
        yield wrong(
            "rollout.val_kwargs.n", "above 1 repeats the same greedy rollout: set `rollout.val_kwargs.do_sample=true`"
        )


def _wrong_in_training(config: RunConfig, groups_of_one: bool) -> Iterator[Problem]:
    rollout, trainer = config.rollout, config.trainer
    if not config.data.train_files and trainer.mode in ("train", "rollout_only"):
        yield wrong("data.train_files", "must be given", Kind.MISSING)
    algorithm = config.algorithm
    compares = algorithm.live and algorithm.preset.compares
    if compares and config.group_size < 2 and trainer.mode == "train" and not groups_of_one:
        why = f"{algorithm.name} compares the rollouts of a task: set `rollout.n` to 2 or more"
        yield wrong("rollout.n", f"makes every advantage 0, because {why}", value="1")
    control, num_rollouts = algorithm.kl_ctrl, config.data.train_batch_size * config.group_size
    if algorithm.use_kl_in_reward and control.type == "adaptive" and control.horizon <= 0.2 * num_rollouts:
        yield Problem(
            "algorithm.kl_ctrl.horizon",
            Kind.WRONG_VALUE,
            f"`algorithm.kl_ctrl.horizon={control.horizon}` is too short for {num_rollouts} rollouts per step: the"
            f" coefficient could change its sign; set more than {0.2 * num_rollouts:g}",
        )
    for option in _TRUNCATIONS:
        if given(rollout, option) and algorithm.preset.family != "imitation":
            yield wrong(
                f"rollout.{option}", "changes the sampling distribution, so training would be biased: remove it"
            )
    if not rollout.temperature and trainer.mode == "train":
        yield wrong(
            "rollout.temperature",
            "means greedy sampling: all rollouts of a task would be equal, so nothing is learned; set a value above 0",
            value="0",
        )
    if config.reward.name == NO_REWARD and trainer.mode != "rollout_only":
        yield wrong("reward.name", "is for `agentrl generate`: training and validation need a score", value="none")
    if trainer.stop_when and not (config.data.val_files and trainer.test_freq):
        yield wrong("trainer.stop_when", "needs `data.val_files` and `trainer.test_freq` above 0", Kind.MISSING)
    if trainer.log_val_generations and not (config.data.val_files and set(trainer.logger) - {"console"}):
        yield wrong(
            "trainer.log_val_generations", "needs `data.val_files` and a logger other than console", Kind.MISSING
        )
    if trainer.resume_mode == "path" and trainer.resume_from_path is None:
        yield wrong(
            "trainer.resume_mode", "needs `trainer.resume_from_path`, a checkpoint's folder", Kind.MISSING, value="path"
        )
    mini_batch = config.actor.ppo_mini_batch_size
    if mini_batch and config.data.train_batch_size % mini_batch:
        yield wrong("actor.ppo_mini_batch_size", "must divide `data.train_batch_size`", value=mini_batch)
    if not config.actor.use_dynamic_bsz and config.actor.ppo_micro_batch_size_per_gpu is None:
        yield wrong("actor.use_dynamic_bsz", "needs `actor.ppo_micro_batch_size_per_gpu`", Kind.MISSING, value="false")


def _wrong_in_generation(config: RunConfig) -> Iterator[Problem]:
    rollout, data = config.rollout, config.data
    if not data.train_files:
        yield wrong("data.train_files", "must be given: `generate` makes rollouts of each row", Kind.MISSING)
    if data.dataset_weights:
        yield wrong("data.dataset_weights", "has no effect in `generate`, which uses each row once", Kind.UNUSED)
    if not config.algorithm.live:
        yield wrong("algorithm.name", "makes no rollouts: remove it", Kind.CONFLICT, value=config.algorithm.name)
    if not rollout.temperature:
        yield from unused("rollout", rollout, _TRUNCATIONS, "`rollout.temperature` above 0")
        if (rollout.n or 1) > 1:
            yield wrong("rollout.n", "above 1 repeats the same greedy rollout: set `rollout.temperature` above 0")


def _wrong_in_mode(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.mode == "val_only" and not config.data.val_files:
        yield wrong("trainer.mode", "needs `data.val_files`", Kind.MISSING, value="val_only")
    if trainer.mode == "val_only" and not trainer.val_before_train:
        yield wrong(
            "trainer.mode",
            "needs the validation before training: remove `trainer.val_before_train=false`",
            Kind.CONFLICT,
            value="val_only",
        )
    if trainer.mode == "rollout_only" and not config.algorithm.live:
        yield wrong("trainer.mode", f"needs {LIVE}", Kind.CONFLICT, value="rollout_only")
    if trainer.mode == "train_only" and trainer.saved_rollouts is None:
        yield wrong("trainer.mode", "needs `trainer.saved_rollouts`, a run's folder", Kind.MISSING, value="train_only")
