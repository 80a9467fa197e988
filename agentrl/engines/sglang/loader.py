"""Start SGLang servers from the configuration, or connect to running servers, and create the engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, PretrainedConfig

from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.base import WeightStream
from agentrl.engines.sglang.api_key import key_of
from agentrl.engines.sglang.client import ServerClient, ServerError, UnreachableError
from agentrl.engines.sglang.engine import SglangEngine
from agentrl.engines.sglang.features import Features, check_sizes, read_features
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.requests import RESERVED, Terms
from agentrl.engines.sglang.servers.options import server_options
from agentrl.engines.sglang.servers.place import Server, are_remote, make_server
from agentrl.engines.sglang.weights.choice import choose_transfer
from agentrl.engines.sglang.weights.delta import check_loader
from agentrl.engines.sglang.weights.transfer import WeightTransfer
from agentrl.errors import ConfigError, Kind
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.folder import checkpoint_shapes, is_folder
from agentrl.models.loading import check_model, load_model
from agentrl.models.merging import merged_weights
from agentrl.utils.hub import hub_folder

AS_STARTED = ("0", "default")
"""Weight versions of a server that still has the weights it loaded at start."""
SENT_AS_0 = "00"
"""Weight version of weights that were sent as policy version 0. The version tells a later run that the server no longer
has the weights that it loaded at start."""


async def load_sglang_engine(
    model: ModelConfig, rollout: RolloutConfig, max_sequence_length: int, run_dir: Path
) -> SglangEngine:
    """Start all servers in parallel, or connect to running servers, and create the engine.

    The caller must close the engine.

    Args:
        max_sequence_length: longest context plus completion of the run, in tokens.
        run_dir: server logs and weight files are written to the folder `sglang/` in this folder.

    Raises:
        ConfigError: the model does not exist; SGLang is not installed; or a server has another model, other parallel
            sizes or a context that is too short.
        ServerError: a server does not start or does not answer; the message names the server and its log.
    """
    check_model(model)
    folder = await asyncio.to_thread(_folder, model)
    shapes = await asyncio.to_thread(checkpoint_shapes, folder, "model.path")
    replicas = await _open_replicas(model, rollout, max_sequence_length, run_dir / "sglang")
    try:
        stale = False
        for replica in replicas if rollout.sglang.urls else ():
            check_sizes(replica.client.url, replica.features, rollout.sglang.options)
        for replica in replicas:
            stale |= not await _is_as_started(replica, model, max_sequence_length)
        terms = _terms(_config(folder, model), replicas, rollout, max_sequence_length)
        delta = rollout.weight_sync == "delta"
        for replica in replicas if delta else ():
            check_loader(replica)
        transfer = choose_transfer(rollout.sglang, shapes, replicas[0].features, run_dir / "sglang", delta=delta)
        engine = _engine(replicas, transfer, terms, rollout)
    except BaseException:
        await asyncio.gather(*(replica.leave() for replica in replicas))
        raise
    return await _with_weights(engine, model, stale)


def _engine(replicas: list[Replica], transfer: WeightTransfer, terms: Terms, rollout: RolloutConfig) -> SglangEngine:
    sglang = rollout.sglang
    return SglangEngine(
        replicas,
        transfer,
        terms,
        router=ServerClient(sglang.router_url, sglang.max_connections, key_of(sglang)) if sglang.router_url else None,
        health_timeout_s=sglang.health_timeout_s,
        start_timeout_s=sglang.start_timeout_s,
        max_restarts=sglang.max_restarts,
    )


async def _open_replicas(
    model: ModelConfig, rollout: RolloutConfig, max_sequence_length: int, log_dir: Path
) -> list[Replica]:
    """Open all replicas; on an error, stop all servers that were started."""
    sglang = rollout.sglang
    servers: list[Server] = []
    if not sglang.urls:
        for index in range(sglang.num_replicas):
            options = server_options(model, rollout, max_sequence_length, 0 if are_remote() else index)
            servers.append(make_server(index, options, log_dir / f"replica-{index}.log", sglang.env))
    clients: list[ServerClient] = []
    try:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                server.start()
                group.create_task(server.ready(sglang.start_timeout_s))
        keys = [(url, key_of(sglang)) for url in sglang.urls] + [(each.url, each.api_key) for each in servers]
        clients += [ServerClient(url, sglang.max_connections, key) for url, key in keys]
        features = await asyncio.gather(*map(_features, clients))
    except BaseException as error:
        await asyncio.gather(*(each.stop() for each in servers), *(client.close() for client in clients))
        raise _first(error) from None
    processes: Sequence[Server | None] = servers or [None] * len(clients)
    return [Replica(*each) for each in zip(clients, features, processes, strict=True)]


async def _features(client: ServerClient) -> Features:
    try:
        return await read_features(client)
    except UnreachableError as error:  # only with `urls`: servers that this run started have already answered
        raise ServerError(f"rollout.sglang.urls: no server answers at {client.url}: {error}") from None


def _first(error: BaseException) -> BaseException:
    """Return the first error of an exception group: reporting one failed server is enough."""
    return error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error


async def _is_as_started(replica: Replica, model: ModelConfig, max_sequence_length: int) -> bool:
    """Check that a server fits the run. Return True if the server still has the weights that it loaded at start."""
    features, url = replica.features, replica.client.url
    as_started = features.weight_version in AS_STARTED
    if as_started and _name(features.model_path) != _name(_base(model)):
        raise ConfigError.at(
            "rollout.sglang.urls",
            Kind.CONFLICT,
            f"{url} serves '{features.model_path}', but model.path is '{_base(model)}'",
        )
    if (longest := features.max_input_tokens + RESERVED) < max_sequence_length:
        raise ConfigError.at(
            "rollout.sglang.urls",
            Kind.CONFLICT,
            f"{url}: its context of {longest} tokens is shorter than data.max_prompt_length +"
            f" data.max_response_length, {max_sequence_length}",
        )
    if not as_started:
        print(
            f"{url} holds weights of an earlier run, '{features.weight_version}': sending the weights of '{model.path}'"
        )
    elif features.weight_version != "0":
        await replica.name_weights("0")
    return as_started


def _terms(
    config: PretrainedConfig, replicas: list[Replica], rollout: RolloutConfig, max_sequence_length: int
) -> Terms:
    features: list[Features] = [replica.features for replica in replicas]
    if rollout.routed_experts and not all(each.routed_experts for each in features):
        raise ConfigError.at(
            "rollout.routed_experts",
            Kind.MISSING,
            "`rollout.routed_experts` needs servers started with --enable-return-routed-experts",
        )
    return Terms(
        config.vocab_size,
        max_sequence_length,
        min(each.max_input_tokens for each in features),
        priority=all(each.priority for each in features),
        seeded=all(each.deterministic for each in features),
        images=all(each.images for each in features),
        stop_strings=all(each.tokenizer for each in features),
        routed_experts=(config.num_hidden_layers, config.num_experts_per_tok) if rollout.routed_experts else None,
    )


async def _with_weights(engine: SglangEngine, model: ModelConfig, stale: bool) -> SglangEngine:
    """Send the initial weights where needed, and return the engine.

    Servers load the base model, so a trained adapter is merged into the base weights and sent. Servers with weights of
    an earlier run get all base weights first, because this run may later send only a part of the weights: without the
    base weights, the servers would use weights of the earlier run for the rest.
    """
    senders = [_base_weights] if stale else []
    if model.lora_adapter_path is not None or find_adapter(model.path) is not None:
        senders.append(_adapted_weights)
    try:
        for weights in senders:
            await engine.load_weights(await asyncio.to_thread(weights, model), 0)
        if senders:
            await asyncio.gather(*(replica.name_weights(SENT_AS_0) for replica in engine.replicas))
    except BaseException:
        await engine.close()
        raise
    return engine


def _base_weights(model: ModelConfig) -> WeightStream:
    alone = model.without_adapter(_base(model))
    base = load_model(alone, torch.device("cpu"), "auto")
    return checkpoint_weights(base, base.named_parameters())


def _adapted_weights(model: ModelConfig) -> WeightStream:
    adapted = load_model(model, torch.device("cpu"), "float32")
    return checkpoint_weights(adapted, merged_weights(adapted))


def _base(model: ModelConfig) -> str:
    adapter = find_adapter(model.path)
    return adapter.base if adapter else model.path


def _folder(model: ModelConfig) -> Path:
    """Folder of the model's files, downloaded if `model.path` is a hub name."""
    base = _base(model)
    return Path(base) if is_folder(base) else hub_folder(base, "model.path")


def _config(folder: Path, model: ModelConfig) -> PretrainedConfig:
    return AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code).get_text_config()


def _name(path: str) -> str:
    """Return a model's name without parent folders. `path` may be in the hub cache: models--org--name/snapshots/..."""
    cached = re.search(r"models--([^/]+)/snapshots", path)
    return cached[1].rpartition("--")[2] if cached else Path(path).resolve().name
