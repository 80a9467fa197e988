"""Measure a training step that computes shared prefixes once, compared with padded rows.

    OMP_NUM_THREADS=1 python benchmarks/shared_prefixes.py
    python benchmarks/shared_prefixes.py --device cuda --max-tokens 16384

With `--device cuda`, both compared kinds of steps compute shared prefixes once. One kind copies the attention keys of
the prefixes (`actor.flex_attention=false`), the other one uses FlexAttention.

The steps run in pairs: one step of each of the two compared kinds. The script prints the median seconds of each kind,
and the median of the ratio of the two times in a pair.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.types.sample import Sample

VOCAB = 517
TINY = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Shape:
    """A mini-batch: groups of 8 samples, ranges of prompt and response lengths, number of shared response tokens.

    Rollouts of a real model share more than the prompt. How many response tokens they share depends on task and policy.
    """

    name: str
    num_groups: int
    prompt: tuple[int, int]
    response: tuple[int, int]
    num_alike: int = 0


SHAPES = [
    Shape("16 groups, prompt 54, traces of about 90", 16, (51, 57), (20, 52)),
    Shape("the same, first 20 response tokens shared", 16, (51, 57), (20, 52), 20),
    Shape("4 groups, prompt 512, response 128", 4, (512, 512), (128, 128)),
]


def make_model(family: str, folder: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **TINY)).save_pretrained(folder)
    return folder


def make_samples(shape: Shape) -> list[Sample]:
    """Return samples with two model turns and a tool's reply between them."""
    draw = random.Random(0)
    samples = []
    for group in range(shape.num_groups):
        prompt = [draw.randrange(VOCAB) for _ in range(draw.randint(*shape.prompt))]
        alike = [draw.randrange(VOCAB) for _ in range(shape.num_alike)]
        for number in range(8):
            num_own = draw.randint(*shape.response)
            ids = prompt + alike + [draw.randrange(VOCAB) for _ in range(num_own - shape.num_alike)]
            turn, reply = num_own // 3, num_own // 6
            mask = [0] * len(prompt) + [1] * turn + [0] * reply + [1] * (num_own - turn - reply)
            ones, advantage = [1.0] * len(ids), draw.uniform(-1, 1)
            credit, behaviour = [advantage * trained for trained in mask], [-6.2 * trained for trained in mask]
            samples.append(Sample(ids, mask, ones, credit, behaviour, rollout_id=f"{group}-{number}", uid=str(group)))
    return samples


KINDS = {
    "padded": {"share_prefixes": False},
    "shared": {"flex_attention": False},
    "flex": {"flex_attention": True},
}
COMPARED = {"cpu": ("padded", "shared"), "cuda": ("shared", "flex")}


def load(path: Path, kind: str, device: str, max_tokens: int) -> TorchBackend:
    actor = {**KINDS[kind], "ppo_max_token_len_per_gpu": max_tokens, "device": device}
    config = ActorConfig.model_validate({**actor, "optim": {"lr": 1e-4}})
    return load_torch_backend(ModelConfig(path=str(path)), config, total_updates=1000, seed=0)


def seconds(backend: TorchBackend, samples: list[Sample]) -> float:
    start = time.perf_counter()
    asyncio.run(backend.train_step(samples, PolicyLoss("vanilla")))  # returns numbers, so a GPU has finished by then
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--device", choices=COMPARED, default="cpu")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[1792])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for family in ("qwen3", "llama"):
        with tempfile.TemporaryDirectory() as folder:
            path = make_model(family, Path(folder))
            for shape in SHAPES:
                for max_tokens in options.max_tokens:
                    kinds = COMPARED[options.device]
                    plain, shared = (load(path, kind, options.device, max_tokens) for kind in kinds)
                    samples = make_samples(shape)
                    pairs = [(seconds(plain, samples), seconds(shared, samples)) for _ in range(options.pairs + 1)][1:]
                    before, after = (statistics.median(times) for times in zip(*pairs, strict=True))
                    ratio = statistics.median(first / second for first, second in pairs)
                    print(
                        f"{family:6} {shape.name:42} {max_tokens:6} tokens a micro-batch: "
                        f"{kinds[0]} {before:.3f} s, {kinds[1]} {after:.3f} s, ratio {ratio:.2f}"
                    )


if __name__ == "__main__":
    main()
