"""The most memory that loading and publishing take on each of two ranks: one JSON line.

`python loading_memory.py FOLDER fsdp`, or a layout of Megatron. Loading is a share of the complete model, publishing
of a bucket.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from megatron_models import layout_of
from rank_processes import ranks_of
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.backends import shared_memory
from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.registry import load_object

SIZES = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
FAMILIES = {
    "qwen3": {},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512},
}
NUM_LAYERS = {"qwen3": 32, "qwen3_moe": 12}
LOADERS = ("agentrl.backends.fsdp.model:ShardedModel", "agentrl.backends.megatron.backend:_loaded")
BUCKET_BYTES = 2**23
MMAP_THRESHOLD = -3
ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 2**16)  # larger blocks go back to the system as soon as they are freed


def memory_of(*kinds: str) -> int:
    """Memory of this process; RssAnon is no file, RssShmem is shared with other processes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(line[1]) for line in lines if line and line[0].rstrip(":") in kinds)


class Watched:
    """Measures how much the memory of this process grows."""

    def __init__(self, measure: Callable[[], int]) -> None:
        gc.collect()
        self._measure, self._done, self._seen = measure, threading.Event(), [measure()]
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self._seen.append(self._measure())

    def growth(self) -> int:
        self._done.set()
        self._thread.join()
        return max(self._seen) - self._seen[0]


def loading(ranks: Ranks, load: str, small: ModelRequest, large: ModelRequest) -> int:
    load_object(load)(ranks, small, seed=0)  # imports what loading needs
    watched = Watched(lambda: memory_of("RssAnon"))
    ranks.held[0] = load_object(load)(ranks, large, seed=0)
    return watched.growth()


def begin(ranks: Ranks) -> None:
    ranks.watched = Watched(lambda: memory_of("RssAnon", "RssShmem"))


def end(ranks: Ranks) -> int:
    return ranks.watched.growth()


def publishing(ranks: Ranks) -> list[int]:
    """Each weight is read on rank 0, as an engine does."""
    names = ranks.held[0].weights.checkpoint_names
    ranks.each(load_object("loading_memory:begin"), [()] * 2)
    with patch.object(shared_memory, "BUCKET_BYTES", BUCKET_BYTES):
        for name, value in shared_memory.collected(ranks, 0, names):
            assert value.isfinite().all(), name
    return ranks.each(load_object("loading_memory:end"), [()] * 2)


def saved(folder: Path, family: str, num_layers: int, layout: str) -> tuple[ModelRequest, int]:
    """A request for a new model of bfloat16 weights, and its bytes in float32."""
    config = AutoConfig.for_model(family, num_hidden_layers=num_layers, **SIZES, **HEADS, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    in_float32 = ModelConfig(path=str(folder), dtype="float32")
    # the check of shared prefixes needs activations, which are large here
    actor = ActorConfig(device="cpu", share_prefixes=False, megatron=layout_of(layout))
    return ModelRequest(in_float32, actor, trainable=False), 4 * model.num_parameters()


def main(folder: Path, name: str) -> None:
    layout, family = "" if name == "fsdp" else name, "qwen3_moe" if "ep" in name else "qwen3"
    small, _ = saved(folder / "small", family, 2, layout)  # a layer per stage
    large, num_bytes = saved(folder / "large", family, NUM_LAYERS[family], layout)
    with ranks_of(2, folder) as ranks:
        arguments = (LOADERS[bool(layout)], small, large)
        loaded = ranks.each(load_object("loading_memory:loading"), [arguments] * 2)  # not of __main__
        published = publishing(ranks) if layout else []
    shares = {"loading": [each / num_bytes for each in loaded]}
    print(json.dumps(shares | {"publishing": [each / BUCKET_BYTES for each in published]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
