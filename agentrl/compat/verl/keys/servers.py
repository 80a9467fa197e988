"""verl's inference server settings. With rollout.name=sglang they are converted to SGLang options."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl.compat.verl.keys.draft import Draft, whole
from agentrl.compat.verl.keys.rows import Hint, Mapped, Row, checked_only, truth
from agentrl.errors import ConfigError, Kind

_ROLLOUT = "actor_rollout_ref.rollout"
_ARGS, _SGLANG = "rollout.sglang.server_args", "rollout.sglang"
_EMBEDDED = "the embedded engine uses rollout.max_num_seqs and rollout.max_kv_tokens"
_ONE_DEVICE = "the embedded engine runs on one device"
_SERVER = "a setting of verl's inference servers"
_SIZES = ("tensor_model_parallel_size", "data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")

Options = Mapping[str, object]


def _as(name: str) -> Callable[[object], Options]:
    return lambda value: {name: value}


def _eager(value: object) -> Options:
    return {"disable_decode_cuda_graph": True, "disable_prefill_cuda_graph": True} if truth(value) else {}


def _uncached(value: object) -> Options:
    return {"disable_radix_cache": True} if truth(value) is False else {}


def _size(name: str) -> Callable[[object], Options]:
    def read(value: object) -> Options:
        if (size := whole(value, 0)) < 1:
            raise ConfigError.keyless(
                f"{value!r} is not a number of devices: set it to 1, or with SGLang to the number of devices"
            )
        return {name: size}

    return read


def _chunked(value: object) -> Options:
    return {"chunked_prefill_size": -1} if truth(value) is False else {}


_OPTIONS: Mapping[str, tuple[Callable[[object], Options], str]] = {
    "gpu_memory_utilization": (_as("mem_fraction_static"), "`mem_fraction_static`"),
    "max_model_len": (_as("context_length"), "`context_length`"),
    "tensor_model_parallel_size": (_size("tp_size"), "`tp_size`, multiplied by the data parallel size"),
    "data_parallel_size": (_size("dp_size"), "`dp_size`"),
    "expert_parallel_size": (_size("ep_size"), "`ep_size`"),
    "pipeline_model_parallel_size": (_size("pp_size"), "`pp_size`"),
    "enforce_eager": (_eager, "True: `disable_decode_cuda_graph`, `disable_prefill_cuda_graph`"),
    "enable_chunked_prefill": (_chunked, "False: `chunked_prefill_size` -1"),
    "enable_prefix_caching": (_uncached, "False: `disable_radix_cache`"),
    "cudagraph_capture_sizes": (_as("cuda_graph_bs_decode"), "`cuda_graph_bs_decode`"),
    "engine_kwargs.sglang": (lambda value: dict(value) if isinstance(value, Mapping) else {}, "passed unchanged"),
}
"""verl's key -> (function that converts the value to server options, text for the documentation)."""

_SETTINGS: Mapping[str, tuple[str, str]] = {
    "free_cache_engine": (
        f"{_SGLANG}.colocate",
        "engine and trainer share a GPU; verl's default True is not used",
    ),
    "update_weights_bucket_megabytes": (f"{_SGLANG}.weight_bucket_mb", "older name"),
    "checkpoint_engine.update_weights_bucket_megabytes": (f"{_SGLANG}.weight_bucket_mb", ""),
}
"""verl's key -> (agentrl's key, a note). agentrl's key is set only if the engine is SGLang."""


SERVERS: tuple[Row, ...] = (
    *(
        Mapped(f"{_ROLLOUT}.{key}", (_ARGS,), read=checked_only(read), note=f"{names}; only with `rollout.name=sglang`")
        for key, (read, names) in _OPTIONS.items()
    ),
    *(
        Mapped(
            f"{_ROLLOUT}.{key}",
            (target,),
            read=checked_only(),
            note="; ".join(filter(None, (note, "only with `rollout.name=sglang`"))),
        )
        for key, (target, note) in _SETTINGS.items()
    ),
    Hint(
        f"{_ROLLOUT}.max_num_batched_tokens", "SGLang chooses it; or set rollout.sglang.server_args.max_prefill_tokens"
    ),
    Hint(f"{_ROLLOUT}.load_format", "servers load the model's files, then receive the policy's weights"),
    *(
        Hint(f"{_ROLLOUT}.{key}", _SERVER)
        for key in (
            *("mode", "scheduling_policy", "layered_summon", "disable_log_stats", "multi_stage_wake_up"),
            *("skip_tokenizer_init", "moe_load_balance_metrics_interval", "engine_kwargs.*", "checkpoint_engine.*"),
            *("prometheus.*", "profiler.*", "disaggregation.*", "router_config_path", "limit_images"),
            *("layer_name_map.*", "skip_dump_dir", "standalone_gpu_memory_utilization"),
        )
    ),
)


def server_options(draft: Draft) -> None:
    """Pass verl's server settings to SGLang. With other engines, ignore them with a notice.

    Raises:
        ConfigError: several devices per engine, without SGLang.
    """
    if draft.values.get("rollout.engine") == "sglang":
        _to_sglang(draft)
        return
    given = [key for name in (*_OPTIONS, *_SETTINGS) for key in _given_keys(draft, name)]
    for key in given:
        if not key.endswith(_SIZES):
            draft.idle.setdefault(_EMBEDDED, []).append(key)
        elif (size := draft.given[key]) is not None and whole(size, 0) != 1:
            raise ConfigError.at(
                key,
                Kind.NOT_SUPPORTED,
                f"`{key}={size}` is not supported: set it to 1, or use SGLang: {_ROLLOUT}.name=sglang",
            )
        else:
            draft.idle.setdefault(_ONE_DEVICE, []).append(key)


def _to_sglang(draft: Draft) -> None:
    options: dict[str, object] = {}
    for name, (read, _) in _OPTIONS.items():
        for key in _given_keys(draft, name):
            options |= read(draft.given[key]) if draft.given[key] is not None else {}
    if "tp_size" in options:  # verl's size is per data parallel rank, SGLang's is for all ranks together
        options["tp_size"] = whole(options["tp_size"], 1) * whole(options.get("dp_size"), 1)  # checked earlier
    own = draft.values.get(_ARGS)
    if options:
        draft.values[_ARGS] = {**options, **(own if isinstance(own, Mapping) else {})}
    for name, (target, _) in _SETTINGS.items():
        for key in _given_keys(draft, name):
            if draft.given[key] is not None:
                draft.values.setdefault(target, draft.given[key])
    _drop_unset(draft)


def _drop_unset(draft: Draft) -> None:
    """Drop the engine's device if its value came from verl's `trainer.device`.

    If servers already run, also drop the engine's dtype if its value is verl's default.
    """
    if draft.source_keys.get("rollout.device") == "trainer.device":
        draft.values.pop("rollout.device", None)
    if draft.values.get(f"{_SGLANG}.urls") and draft.source_keys.get("rollout.dtype") not in draft.given:
        draft.values.pop("rollout.dtype", None)


def _given_keys(draft: Draft, name: str) -> list[str]:
    """Return the keys by which the user gave the setting `name`; verl's older generation command has a shorter key."""
    return [key for key in (f"{_ROLLOUT}.{name}", f"rollout.{name}") if key in draft.given]
