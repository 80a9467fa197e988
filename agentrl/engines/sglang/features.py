"""Version, limits and features that a running SGLang server reports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue

from agentrl.engines.sglang.client import Answer, RefusedError, ServerClient, ServerError
from agentrl.errors import ConfigError, Kind

Reported = TypeVar("Reported", bool, int, str)

OLDEST = (0, 5, 21)
NEEDED_PATHS = (
    "/generate",
    "/pause_generation",
    "/continue_generation",
    "/abort_request",
    "/flush_cache",
    "/begin_weight_update",
    "/end_weight_update",
    "/update_weights_from_disk",
    "/update_weights_from_tensor",
    "/init_weights_update_group",
    "/update_weights_from_distributed",
    "/server_info",
    "/model_info",
)


@dataclass(frozen=True, slots=True)
class Features:
    """Version, limits and features of a server.

    Attributes:
        dtype: "auto" if the server was started with "auto" and does not report the resulting dtype.
        max_input_tokens: the server refuses a context of this many tokens or more.
        max_total_tokens: capacity of the server's KV cache in tokens.
        weight_version: name of the weights that the server uses.
        tp_size, pp_size, dp_size: sizes of tensor, pipeline and data parallelism.
        dp_attention: whether data parallelism applies to attention only, within the `tp_size` GPUs.
        priority: whether requests are scheduled by priority.
        memory_saver: whether the server can release its memory.
        routed_experts: whether the server can report the experts of each token.
        deterministic: whether sampled tokens are independent of other requests of the batch.
        tokenizer: whether the server has a tokenizer, so that stop strings work.
        images: whether the model accepts images.
        weight_loaders: import paths of the functions that may load weights sent to the server.
    """

    version: str
    model_path: str
    device: str
    dtype: str
    max_input_tokens: int
    max_total_tokens: int
    weight_version: str
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    dp_attention: bool = False
    priority: bool = False
    memory_saver: bool = False
    routed_experts: bool = False
    deterministic: bool = False
    tokenizer: bool = True
    images: bool = False
    weight_loaders: tuple[str, ...] = ()


async def read_features(client: ServerClient) -> Features:
    """Read the version, limits and features of a server.

    Raises:
        UnreachableError: no answer.
        ServerError: the address is not an SGLang server, or the server is older than 0.5.21 or cannot generate text.
    """
    await _check_paths(client)
    server, model = await asyncio.gather(client.get("/server_info"), client.get("/model_info"))
    try:
        features = features_of(server, model)
    except KeyError as error:
        raise ServerError(
            f"{client.url}: SGLang {server.get('version')} does not report {error}; {_needed()}"
        ) from None
    # the version is compared, because no endpoint reports whether the server supports spans of weight versions
    if _numbers(features.version) < OLDEST:
        raise ServerError(f"{client.url}: this server runs SGLang {features.version}; {_needed()}")
    if not model["is_generation"]:
        raise ServerError(f"{client.url}: '{features.model_path}' is served for embeddings and cannot generate text")
    return features


def features_of(server: Answer, model: Answer) -> Features:
    """Read the features from the answers of `/server_info` and `/model_info`. Raise KeyError if a field is missing."""
    return Features(
        version=_reported(server, "version", str),
        model_path=_reported(model, "model_path", str),
        device=_reported(server, "device", str),
        dtype=_reported(server, "dtype", str),
        max_input_tokens=_reported(server, "max_req_input_len", int),
        max_total_tokens=_reported(server, "max_total_num_tokens", int),
        weight_version=_reported(model, "weight_version", str),
        tp_size=_reported(server, "tp_size", int),
        pp_size=_reported(server, "pp_size", int),
        dp_size=_reported(server, "dp_size", int),
        dp_attention=_reported(server, "enable_dp_attention", bool),
        priority=_reported(server, "enable_priority_scheduling", bool),
        memory_saver=_reported(server, "enable_memory_saver", bool),
        routed_experts=_reported(server, "enable_return_routed_experts", bool),
        deterministic=_reported(server, "enable_deterministic_inference", bool),
        tokenizer=not _reported(server, "skip_tokenizer_init", bool),
        images=_reported(model, "has_image_understanding", bool),
        weight_loaders=_names(server.get("custom_weight_loader")),
    )


def check_sizes(url: str, features: Features, stated: Mapping[str, JsonValue]) -> None:
    """Check the sizes that the configuration states for a running server.

    Args:
        stated: `rollout.sglang.server_args`, with names in snake case; sizes that are not given are not checked.

    Raises:
        ConfigError: a size differs.
    """
    actual = {key: getattr(features, key) for key in ("tp_size", "pp_size", "dp_size")}
    actual["enable_dp_attention"] = features.dp_attention
    wrong = [f"{key} {actual[key]}, not {stated[key]}" for key in actual if stated.get(key) not in (None, actual[key])]
    if wrong:
        text = f"{url} runs with {', '.join(wrong)}: correct rollout.sglang.server_args, or restart the server"
        raise ConfigError.at("rollout.sglang.server_args", Kind.CONFLICT, text)


async def _check_paths(client: ServerClient) -> None:
    try:
        paths = (await client.get("/openapi.json")).get("paths")
    except RefusedError as error:
        raise ServerError(f"{client.url}: not an SGLang server: {error}") from None
    if not isinstance(paths, dict) or "/generate" not in paths:
        raise ServerError(f"{client.url}: not an SGLang server: it has no /generate")
    if missing := [path for path in NEEDED_PATHS if path not in paths]:
        version = await _old_version(client, paths)
        raise ServerError(f"{client.url}: SGLang {version} lacks {', '.join(missing)}; {_needed()}")


async def _old_version(client: ServerClient, paths: Answer) -> str:
    """Version of an old server, which may report its version under another path."""
    path = next((path for path in ("/server_info", "/get_server_info") if path in paths), None)
    answer = await client.get(path) if path else {}
    return str(answer.get("version", "of an unknown version"))


def _reported(answer: Answer, key: str, kind: type[Reported]) -> Reported:
    """Return a field of type `kind`; a field of another type counts as missing."""
    value = answer[key]
    if not isinstance(value, kind):
        raise KeyError(key)
    return value


def _names(value: JsonValue) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _numbers(version: str) -> tuple[int, ...]:
    """0.5.21.post1 -> (0, 5, 21)."""
    parts = version.split(".")[:3]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)


def _needed() -> str:
    return f"agentrl needs {'.'.join(map(str, OLDEST))} or newer"
