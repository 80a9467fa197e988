"""verl's reward keys, with the names of several verl versions."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.compat.verl.keys.data import expand_home
from agentrl.compat.verl.keys.draft import Draft
from agentrl.compat.verl.keys.rows import Hint, Mapped, Row, truth
from agentrl.config.reward import MANAGERS
from agentrl.errors import ConfigError, Kind, suggestion
from agentrl.utils.verl_classes import MANAGERS as CLASSES

_MANAGER, _OVERLONG, _SANDBOX = "reward.reward_manager", "reward.overlong_buffer", "reward.sandbox_fusion"
_NAMES = {"remote": "prime", "gdpo": "naive", **CLASSES}
_LIMITS = ("max_concurrent", "max_rpm", "max_tpm", "estimated_tokens_per_request")
_NAME, _MODEL = "reward.name", "reward.reward_model"
_NO_MODEL = "no effect without reward_model.enable"
_OF_PROCESS = "the reward model runs in this process; set reward.reward_model.{device,dtype,batch_tokens}"
_OFF_LOOP = "every reward runs outside the event loop, with the timeout reward.timeout_s"
_OF_MODEL = (
    *("enable_resource_pool", "n_gpus_per_node", "nnodes", "strategy", "micro_batch_size", "micro_batch_size_per_gpu"),
    *("max_length", "use_dynamic_bsz", "forward_max_token_len_per_gpu", "ulysses_sequence_parallel_size"),
    *("nccl_timeout", "load_weight", "profiler.*", "megatron.*", "model.*", "rollout.*"),
)


def _reward_function(prefix: str) -> tuple[Row, ...]:
    return (
        Mapped(f"{prefix}.path", "reward.custom_reward_function.path", read=expand_home),
        Mapped(f"{prefix}.name", "reward.custom_reward_function.name", "compute_score"),
        Mapped(f"{prefix}.reward_kwargs", "reward.custom_reward_function.reward_kwargs"),
    )


def _model(enable: object) -> Mapping[str, object]:
    return {_NAME: "reward_model"} if truth(enable) else {}


def _manager(name: object) -> str:
    return _NAMES.get(str(name), str(name))


def _managers(name: str, source: str, path: str) -> tuple[Row, ...]:
    note = "remote becomes prime, gdpo becomes naive; with importlib: the name of a class"
    return (
        Mapped(name, f"{_MANAGER}.name", read=_manager, note=note),
        Mapped(source, f"{_MANAGER}.source", note="importlib: a class called with (reward, config), docs/extending.md"),
        Mapped(path, f"{_MANAGER}.module.path", read=expand_home),
    )


def _overlong(section: str) -> tuple[Row, ...]:
    return tuple(Mapped(f"{section}.{key}", f"{_OVERLONG}.{key}") for key in ("enable", "len", "penalty_factor", "log"))


def _sandbox(section: str) -> tuple[Row, ...]:
    return tuple(
        Mapped(f"{section}.{key}", f"{_SANDBOX}.{key}") for key in ("url", "max_concurrent", "memory_limit_mb")
    )


REWARD: tuple[Row, ...] = (
    *_reward_function("custom_reward_function"),
    *_reward_function("reward.custom_reward_function"),
    *_managers(
        "reward_model.reward_manager", "reward_model.reward_loop_source", "reward_model.reward_loop_module_path"
    ),
    *_managers("reward_manager.name", "reward_manager.source", "reward_manager.module.path"),
    *_managers(f"{_MANAGER}.name", f"{_MANAGER}.source", f"{_MANAGER}.module.path"),
    Mapped("reward_model.reward_loop_class_name", f"{_MANAGER}.name"),
    *(Hint(f"{section}.module.name", "no effect if name is set") for section in ("reward_manager", _MANAGER)),
    *_overlong("reward_model.overlong_buffer"),
    *_overlong("reward_model.reward_kwargs.overlong_buffer_cfg"),
    *_overlong("reward.reward_kwargs.overlong_buffer_cfg"),
    *(
        Hint(f"{section}.reward_kwargs.max_resp_len", "use data.max_response_length")
        for section in ("reward_model", "reward")
    ),
    *_sandbox("sandbox_fusion"),
    *_sandbox("reward_model.sandbox_fusion"),
    *_sandbox(_SANDBOX),
    *(
        Mapped(f"{section}.num_workers", "reward.num_workers", note="for prime, and for rewards of math answers")
        for section in ("reward", "reward_model")
    ),
    *(Mapped(f"reward.{key}", f"reward.{key}", note="only for the reward manager rate_limited") for key in _LIMITS),
    Mapped("reward.timeout", "reward.timeout_s", note="a longer call gives no score; in verl, its score is 0"),
    *(
        Mapped(
            key,
            (_NAME,),
            read=_model,
            note="a sequence classifier, whose output is the score; refused together with a reward function",
        )
        for key in ("reward_model.enable", f"{_MODEL}.enable")
    ),
    *(Mapped(key, f"{_MODEL}.path", read=expand_home) for key in ("reward_model.model.path", f"{_MODEL}.model_path")),
    Mapped("reward_model.model.trust_remote_code", f"{_MODEL}.trust_remote_code"),
    *(Hint(f"reward_model.{key}", _OFF_LOOP) for key in ("launch_reward_fn_async", "use_reward_loop")),
    *(
        Hint(f"{_MODEL}.{key}", _OF_PROCESS)
        for key in ("enable_resource_pool", "n_gpus_per_node", "nnodes", "rollout.*")
    ),
    *(Hint(f"reward_model.{key}", _OF_PROCESS) for key in _OF_MODEL),
)


def adjust_reward(draft: Draft) -> None:
    """Check the reward manager, and drop the options that it does not read in verl."""
    values = draft.values
    name = str(values.get(f"{_MANAGER}.name", "naive"))
    own = values.get(f"{_MANAGER}.source") == "importlib"
    if not own and name not in MANAGERS:
        source = draft.source_keys[f"{_MANAGER}.name"]
        raise ConfigError.at(
            source,
            Kind.NOT_SUPPORTED,
            f"`{source}`: '{name}' is not supported: {suggestion(name, [*MANAGERS, *_NAMES])}",
        )
    if own or name != "rate_limited":
        draft.leave_out([f"reward.{key}" for key in _LIMITS], f"no effect without {_MANAGER}.name=rate_limited")
    else:
        values.setdefault("reward.max_concurrent", 1)
    _adjust_overlong(draft, own or name)
    _adjust_model(draft)


def _adjust_overlong(draft: Draft, manager: object) -> None:
    options = [key for key in draft.values if key.startswith(f"{_OVERLONG}.")]
    if truth(draft.values.get(f"{_OVERLONG}.enable")) is not True:
        draft.leave_out(options, "no effect if enable is false")
        return
    if manager != "dapo" and draft.source_keys[f"{_OVERLONG}.enable"] != f"{_OVERLONG}.enable":
        draft.leave_out(options, f"no effect without {_MANAGER}.name=dapo, as in verl")
        return
    longest = draft.values.get("data.max_response_length")
    for section in ("reward_model", "reward"):
        key = f"{section}.reward_kwargs.max_resp_len"
        if key in draft.given and draft.given[key] is not None and str(draft.given[key]) != str(longest):
            raise ConfigError.at(
                key,
                Kind.NOT_SUPPORTED,
                f"`{key}={draft.given[key]}` is not supported: the penalty is computed from "
                f"data.max_response_length, {longest}",
            )


def _adjust_model(draft: Draft) -> None:
    """Check reward model keys. Refuse verl's reward model if a reward function is also given."""
    source = draft.source_keys.get(_NAME, _NAME)
    if draft.values.get(_NAME) != "reward_model" and not draft.values.get("reward.components"):
        draft.leave_out((f"{_MODEL}.path", f"{_MODEL}.trust_remote_code"), _NO_MODEL)
    elif source != _NAME and draft.values.get("reward.custom_reward_function.path") is not None:
        raise ConfigError.at(
            source,
            Kind.NOT_SUPPORTED,
            f"`{source}` is not supported with a reward function: agentrl starts no reward server; "
            "set reward.components, or reward.name=judge with reward.judge.url",
        )
    elif source != _NAME:  # without a reward function, the default name of the function has no effect
        draft.values.pop("reward.custom_reward_function.name", None)
