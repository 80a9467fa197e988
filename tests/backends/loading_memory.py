"""The most memory that loading takes on each of two ranks, as shares of the complete model: one JSON line."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
from pathlib import Path

import torch
from rank_processes import ranks_of
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.model import ShardedModel
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.registry import load_object

SIZES = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
MMAP_THRESHOLD = -3
ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 2**16)  # larger blocks go back to the system as soon as they are freed


def anonymous_bytes() -> int:
    """Memory of this process that is not a file."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def growth(ranks: Ranks, small: ModelRequest, large: ModelRequest) -> int:
    ShardedModel(ranks, small, seed=0)  # imports what loading needs
    gc.collect()
    loaded, seen = threading.Event(), [anonymous_bytes()]

    def watch() -> None:
        while not loaded.wait(0.01):
            seen.append(anonymous_bytes())

    watching = threading.Thread(target=watch)
    watching.start()
    ShardedModel(ranks, large, seed=0)
    loaded.set()
    watching.join()
    return max(seen) - seen[0]


def saved(folder: Path, num_layers: int) -> tuple[ModelRequest, int]:
    """A request for a new model of bfloat16 weights, and its bytes in float32."""
    config = AutoConfig.for_model("qwen3", num_hidden_layers=num_layers, **SIZES, **HEADS)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    in_float32 = ModelConfig(path=str(folder), dtype="float32")
    actor = ActorConfig(device="cpu", share_prefixes=False)  # its check needs activations, which are large here
    return ModelRequest(in_float32, actor, trainable=False), 4 * model.num_parameters()


def main(folder: Path) -> None:
    small, _ = saved(folder / "small", 1)
    large, num_bytes = saved(folder / "large", 32)
    with ranks_of(2, folder) as ranks:
        found = ranks.each(load_object("loading_memory:growth"), [(small, large)] * 2)  # not of __main__
    print(json.dumps([each / num_bytes for each in found]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
