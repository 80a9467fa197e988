"""Overview of a run's components and hooks, derived from the configuration. No model is loaded.

Torch is imported only if the estimator is a user's function; see `_has_critic`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentrl.algos.registries import ADVANTAGE_ESTIMATORS
from agentrl.capabilities import engine_spec
from agentrl.config import RunConfig
from agentrl.config.reward import NO_REWARD
from agentrl.config.rules.megatron import BALANCING, has_layouts
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.facts import model_facts
from agentrl.run_folder.location import shown


def overview(config: RunConfig) -> str:
    """Return one line per component of the run that `config` describes. Every key of `config` must be set."""
    rows = {name: value for name, value in _components(config) if value}
    return "\n".join(f"  {name:<12} {value}" for name, value in rows.items())


def step_hooks(config: RunConfig) -> list[str]:
    """Return the names of the run's step hooks, in the order in which they run; see `StepHooks`."""
    engine, trains_policy = _has_engine(config), _trains_policy(config)
    shares_gpu = engine and config.rollout.sglang.colocate and engine_spec(config.rollout.engine).colocate
    hooks = {
        "gpu_handover": trains_policy and shares_gpu,
        "kl_controller": trains_policy and config.algorithm.use_kl_in_reward,
        "critic": _has_critic(config),
        "learn": _trains(config),
        "reference_sync": _has_reference_model(config) and config.ref.sync_steps,
        "reward_model": has_online_reward_model(config),
        "gpu_return": trains_policy and shares_gpu,
        "publish": trains_policy and engine,
    }
    return [name for name, runs in hooks.items() if runs]


def has_online_reward_model(config: RunConfig) -> bool:
    """Return whether the run trains a reward model besides the policy. Only runs with live training rollouts can."""
    return config.reward.reward_model.online is not None and config.trainer.mode == "train" and config.algorithm.live


def _components(config: RunConfig) -> Iterator[tuple[str, str]]:
    yield "mode", config.trainer.mode
    yield "model", _model(config)
    yield "source", _source(config)
    if rolls_out(config):
        yield "agent loop", config.rollout.agent_loop
        yield "harness", config.rollout.harness or ""
        yield "tools", _tools(config)
        yield "tool calls", config.rollout.multi_turn.format if _tools(config) else ""
        yield "reward", _reward(config)
    yield "engine", _engine(config) if _has_engine(config) else ""
    if _trains(config):
        yield "algorithm", _algorithm(config)
        yield "backend", f"{config.actor.backend}, device {config.actor.device}"
        yield "experts", _experts(config)
        yield "reference", _reference(config)
        yield "critic", shown(Path(config.critic.path or config.model.path)) if _has_critic(config) else ""
    yield "hooks", " -> ".join(step_hooks(config)) or "none (no training)"
    yield "loggers", ", ".join(dict.fromkeys(("jsonl", *config.trainer.logger)))


def _trains(config: RunConfig) -> bool:
    return config.trainer.mode in ("train", "train_only")


def _trains_policy(config: RunConfig) -> bool:
    return _trains(config) and config.algorithm.preset.family != "reward"


def _has_engine(config: RunConfig) -> bool:
    if config.algorithm.preset.family == "reward":
        return False
    return config.trainer.mode != "train_only" or bool(config.data.val_files)


def rolls_out(config: RunConfig) -> bool:
    """Return whether the run samples rollouts, in training or validation."""
    live = config.algorithm.live and config.trainer.mode in ("train", "rollout_only")
    return _has_engine(config) and (live or bool(config.data.val_files))


def _has_critic(config: RunConfig) -> bool:
    """Return whether the estimator needs values. A user's estimator is imported to find out."""
    name = config.algorithm.estimator
    if not _trains(config) or config.algorithm.preset.family != "policy":
        return False
    if ADVANTAGE_ESTIMATORS.is_builtin(name):
        return name == "gae"
    from agentrl.algos.options import needs_of  # this import loads torch

    return "values" in needs_of(ADVANTAGE_ESTIMATORS.get(name))


def _has_reference_model(config: RunConfig) -> bool:
    """Return whether the reference is a separate model, not the base model of the policy's LoRA adapter."""
    return _trains_policy(config) and config.uses_reference and (config.ref.path is not None or not _has_lora(config))


def _has_lora(config: RunConfig) -> bool:
    model = config.model
    return bool(model.lora_rank or model.lora_adapter_path or find_adapter(model.path))


def _model(config: RunConfig) -> str:
    return shown(Path(config.model.path)) + (", with a LoRA adapter" if _has_lora(config) else "")


def _experts(config: RunConfig) -> str:
    """Describe how the load of experts is balanced. Empty for a dense model, or if the backend has no such option."""
    shape = model_facts(config.model.path).shape if has_layouts(config) else None
    if shape is None or not shape.num_experts:
        return ""
    layout = config.actor.megatron
    given = [f"{name}={value:g}" for name in BALANCING if (value := getattr(layout, name))]
    frozen = shape.expert_bias and not layout.moe_router_bias_update_rate
    how = f"balanced by {', '.join(given)}" if given else "not balanced: all balancing losses are off"
    return f"{shape.num_experts} per layer, {how}{', expert bias frozen' if frozen else ''}"


def _source(config: RunConfig) -> str:
    trainer, feed = config.trainer, config.algorithm.preset.feed
    size = f"{config.data.train_batch_size} groups per step"
    if trainer.mode == "val_only":
        return "none (validation only)"
    if trainer.mode == "train_only" and trainer.saved_rollouts:
        return f"saved rollouts of {shown(trainer.saved_rollouts)}"
    if not config.algorithm.live:
        return f"{feed} in data.train_files, {size}"
    asynchronous = trainer.max_staleness or trainer.over_sampling
    kind = f"asynchronous, max_staleness {trainer.max_staleness}" if asynchronous else "on-policy"
    return f"live rollouts, {kind}, {size}, {config.group_size} rollouts per group"


def _tools(config: RunConfig) -> str:
    turns = config.rollout.multi_turn
    files = (turns.tool_config_path, turns.function_tool_path, turns.environment, turns.interaction_config_path)
    passed = [name for name in config.trainer.python_objects if not name.startswith("reward ")]
    return ", ".join([shown(Path(file)) for file in files if file is not None] + passed)


def _engine(config: RunConfig) -> str:
    rollout = config.rollout
    settings = {"deterministic": rollout.deterministic, "on the trainer's GPU": rollout.sglang.colocate}
    return ", ".join([rollout.engine, *(name for name, on in settings.items() if on)])


def _reward(config: RunConfig) -> str:
    reward, custom = config.reward, config.reward.custom_reward_function
    if passed := [name for name in config.trainer.python_objects if name.startswith("reward ")]:
        return ", ".join(name.removeprefix("reward ") for name in passed)
    if reward.components:
        return f"mixture of {', '.join(reward.components)}"
    if custom.path is not None:
        return f"{shown(custom.path)}:{custom.name}"
    return {"auto": "auto: by data_source", NO_REWARD: "none"}.get(reward.name, reward.name)


def _algorithm(config: RunConfig) -> str:
    algorithm, family = config.algorithm, config.algorithm.preset.family
    correction = algorithm.rollout_correction
    reinforces = family == "policy" and correction.bypass_mode and correction.loss_type == "reinforce"
    estimator = f"estimator {algorithm.estimator}, " if family == "policy" else ""
    aggregation = f", {config.aggregation}" if family in ("policy", "imitation") else ""
    return f"{algorithm.name}: {estimator}loss {'reinforce' if reinforces else config.loss_name}{aggregation}"


def _reference(config: RunConfig) -> str:
    if not config.uses_reference:
        return ""
    path = shown(Path(config.ref.path or config.model.path))
    return path if _has_reference_model(config) else "the policy's base model, without its LoRA adapter"
