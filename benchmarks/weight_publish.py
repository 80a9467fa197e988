"""Measure the time to send weights to an SGLang server, compared with a copy in memory.

    python benchmarks/weight_publish.py [460k | 100M | 500M] [--folder FOLDER] [--changed SHARE]

A Qwen3 model of the given size with random weights is saved in the folder (by default a temporary one) and served on
this machine's CPU. Each transfer method then updates the server with new float32 weights. During an update, the server
is paused and its cache is flushed. The first update of each method is not counted in the medians, because it includes
the setup of the method, such as creating the process group. The ratio is relative to copying every tensor once into new
memory.

With `--changed`, the server has bfloat16 weights. `group` sends all values. `delta` (`rollout.weight_sync=delta`) sends
only the changed values; before each of its updates, the given share of the values changes. The time for a slower link
is computed as the measured time on this machine plus the bytes divided by the speed of the link.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
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
LINKS_MB = (1000, 100)
"""Links in MB/s for which times are computed."""
SIZES = {
    "460k": {"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2},
    "100M": {"vocab_size": 32768, "hidden_size": 640, "intermediate_size": 1920, "num_hidden_layers": 16},
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
    """Return the seconds of copying all weights once."""
    times = []
    for _ in range(NUM_REPEATS):
        started = time.perf_counter()
        copies = [value.clone() for _, value in changing_weights(model)]
        times.append(time.perf_counter() - started)
        del copies
    return statistics.median(times)


@dataclass
class Sent:
    """Measurements of the updates with one transfer method.

    Attributes:
        times: seconds of each update, including the first one.
        num_bytes: bytes sent in each update; 0 if the method does not count them.
        compare_s: seconds per update in which old and new values were compared.
        share: share of the values that changed.
    """

    times: list[float] = field(default_factory=list)
    num_bytes: list[float] = field(default_factory=list)
    compare_s: float = 0.0
    share: float = 1.0


async def send(model: PreTrainedModel, replica: Replica, folder: Path, way: str, changed: float = 0.0) -> Sent:
    """Update the server several times with the transfer method `way`."""
    shapes = checkpoint_shapes(folder / "model", "model.path")
    config = SglangConfig.model_validate({} if way == "delta" else {"weight_transfer": way})
    transfer = choose_transfer(config, shapes, replica.features, folder / "weights", delta=way == "delta")
    sent, total = Sent(), 0.0
    for version in range(NUM_REPEATS + 1):
        change(model, changed)
        await replica.client.post("/pause_generation", {"mode": "retract"})
        started = time.perf_counter()
        await transfer.send([replica], checkpoint_weights(model, changing_weights(model)), version)
        sent.times.append(time.perf_counter() - started)
        await replica.client.post("/continue_generation")
        before, total = total, transfer.metrics().get("weight_sent_bytes", 0.0)
        sent.num_bytes.append(total - before)
    sent.compare_s = transfer.metrics().get("weight_compare_s", 0.0) / len(sent.times)
    sent.share = transfer.metrics().get("weight_changed_share", 1.0)
    await transfer.close()
    return sent


def change(model: PreTrainedModel, share: float) -> None:
    """Change a share of the values by 2 %, so that their bfloat16 values change by at least one rounding step."""
    for _, value in changing_weights(model) if share else ():
        value *= 1 + 0.02 * (torch.rand(value.shape) < share)


def print_full(way: str, sent: Sent, num_bytes: int, plain: float) -> None:
    times = sent.times[1:]
    median = statistics.median(times)
    print(
        f"{way:8}{median * 1e3:10.1f} ms  ({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f})"
        f"  {num_bytes / median / 1e6:8.0f} MB/s  {median / plain:8.1f} x a plain copy"
    )


def print_share(way: str, sent: Sent, num_bytes: int) -> None:
    """Print the measurements of an update, and its computed time over slower links."""
    times = sent.times[1:]
    median = statistics.median(times)
    size = statistics.median(sent.num_bytes[1:]) or num_bytes
    links = ", ".join(f"{speed} MB/s {median + size / speed / 1e6:.2f} s" for speed in LINKS_MB)
    spread = f"{min(times):.2f} to {max(times):.2f}"
    print(
        f"{way:8}{sent.share:7.1%} changed {size / 1e6:10,.2f} MB  {median:.2f} s ({spread}), comparing"
        f" {sent.compare_s:.2f} s; first {sent.times[0]:.2f} s; computed: {links}"
    )


async def measure(model: PreTrainedModel, folder: Path, changed: list[float]) -> None:
    num_bytes = sum(value.nbytes for _, value in changing_weights(model))
    plain = copy_s(model)
    print(f"{model.num_parameters():,} parameters, {num_bytes / 1e6:,.1f} MB; a plain copy takes {plain * 1e3:.2f} ms")
    no_tokenizer = {"server_args": {"skip_tokenizer_init": True}}
    served = {"dtype": "bfloat16", "weight_sync": "delta"} if changed else {"dtype": "float32"}
    rollout = RolloutConfig.model_validate({"engine": "sglang", **served, "sglang": no_tokenizer})
    options = server_options(ModelConfig(path=str(folder / "model")), rollout, 256)
    server = LocalServer(options, folder / "server.log", {})
    server.start()
    try:
        await server.ready(START_S)
        client = ServerClient(server.url, api_key=server.api_key)
        replica = Replica(client, await read_features(client))
        for way in () if changed else ("tensor", "group", "disk"):
            print_full(way, await send(model, replica, folder, way), num_bytes, plain)
        if changed:
            print_share("group", await send(model, replica, folder, "group"), num_bytes // 2)
        for share in changed:
            print_share("delta", await send(model, replica, folder, "delta", share), num_bytes // 2)
        await client.close()
    finally:
        await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", nargs="?", default="460k", choices=SIZES)
    parser.add_argument("--folder")
    parser.add_argument("--changed", type=float, nargs="+", default=[], metavar="SHARE")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the server needs the other cores
    model = new_model(options.size)
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        model.save_pretrained(Path(root) / "model")
        asyncio.run(measure(model, Path(root), options.changed))


if __name__ == "__main__":
    main()
