"""Measure the time to send weights to an SGLang server, compared with a copy in memory.

    python benchmarks/weight_publish.py [460k | 500M] [folder]

A Qwen3 of that size with random weights is saved in the folder (by default a temporary one) and served on this
machine's CPU. Each transfer method then updates it with new float32 weights; the server is paused and its cache
flushed. The first update of each method is not counted, because it creates the process group. The ratio is relative to
copying every tensor once into new memory.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from agentrl.backends.torch.freezing import changing_weights
from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig, SglangConfig
from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.features import read_features
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.servers.options import server_options
from agentrl.engines.sglang.servers.server import LocalServer
from agentrl.engines.sglang.weights.choice import choose_transfer
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.folder import checkpoint_shapes

NUM_REPEATS = 5
START_S = 600.0
SIZES = {
    "460k": {"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2},
    "500M": {"vocab_size": 32768, "hidden_size": 1280, "intermediate_size": 3840, "num_hidden_layers": 23},
}
COMMON = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": torch.float32,
}


def new_model(size: str) -> PreTrainedModel:
    torch.manual_seed(0)
    head_dim = SIZES[size]["hidden_size"] // 4
    config = Qwen3Config(**SIZES[size], **COMMON, head_dim=head_dim, tie_word_embeddings=True)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def copy_s(model: PreTrainedModel) -> float:
    """Seconds of copying all weights once."""
    times = []
    for _ in range(NUM_REPEATS):
        started = time.perf_counter()
        copies = [value.clone() for _, value in changing_weights(model)]
        times.append(time.perf_counter() - started)
        del copies
    return statistics.median(times)


async def send_s(model: PreTrainedModel, replica: Replica, folder: Path, way: str) -> list[float]:
    """Seconds of each update but the first."""
    shapes = checkpoint_shapes(folder / "model", "model.path")
    config = SglangConfig.model_validate({"weight_transfer": way})
    transfer = choose_transfer(config, shapes, replica.features, folder / "weights")
    times = []
    for version in range(NUM_REPEATS + 1):
        await replica.client.post("/pause_generation", {"mode": "retract"})
        started = time.perf_counter()
        await transfer.send([replica], checkpoint_weights(model, changing_weights(model)), version)
        times.append(time.perf_counter() - started)
        await replica.client.post("/continue_generation")
    await transfer.close()
    return times[1:]


async def measure(model: PreTrainedModel, folder: Path) -> None:
    num_bytes = sum(value.nbytes for _, value in changing_weights(model))
    plain = copy_s(model)
    print(f"{model.num_parameters():,} parameters, {num_bytes / 1e6:,.1f} MB; a plain copy takes {plain * 1e3:.2f} ms")
    no_tokenizer = {"server_args": {"skip_tokenizer_init": True}}
    rollout = RolloutConfig.model_validate({"engine": "sglang", "dtype": "float32", "sglang": no_tokenizer})
    options = server_options(ModelConfig(path=str(folder / "model")), rollout, 256)
    server = LocalServer(options, folder / "server.log", {})
    server.start()
    try:
        await server.ready(START_S)
        client = ServerClient(server.url, api_key=server.api_key)
        replica = Replica(client, await read_features(client))
        for way in ("tensor", "group", "disk"):
            times = await send_s(model, replica, folder, way)
            median = statistics.median(times)
            print(
                f"{way:8}{median * 1e3:10.1f} ms  ({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f})"
                f"  {num_bytes / median / 1e6:8.0f} MB/s  {median / plain:8.1f} x a plain copy"
            )
        await client.close()
    finally:
        await server.stop()


def main(size: str = "460k", folder: str | None = None) -> None:
    torch.set_num_threads(1)  # the server needs the other cores
    model = new_model(size)
    with tempfile.TemporaryDirectory(dir=folder) as root:
        model.save_pretrained(Path(root) / "model")
        asyncio.run(measure(model, Path(root)))


if __name__ == "__main__":
    main(*sys.argv[1:])
