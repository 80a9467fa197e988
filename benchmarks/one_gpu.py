"""Compare the memory and times that `agentrl plan` predicts with measurements on one CUDA GPU, for models of real size.

    python benchmarks/one_gpu.py [CASE ...] [sampling] [--hardware H100]

The models have random weights, which change neither memory nor times. A step has two micro-batches. Each sample has
256 prompt tokens and 768 trained tokens.

- Memory: the maximum that torch allocates during a step, and the memory that torch holds between steps. Neither number
  includes CUDA's own memory.
- Times: the median of three training steps, and the time of one pass that scores the same samples. A first step and a
  first pass are not counted.
- Sampling: 128 requests at a time, each with 512 prompt tokens and 128 sampled tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch.backend import load_torch_backend
from agentrl.cli.compose import compose_config
from agentrl.config.run import RunConfig
from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.torch.engine import TorchEngine
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import parse_fleet
from agentrl.plan.layout import layout_of, servers_of
from agentrl.plan.memory.training import Trainer
from agentrl.plan.shapes import Shape
from agentrl.plan.time.flops import attention_flops, body_flops_per_token, head_flops_per_token
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.training import Training
from agentrl.types.sample import Sample

LENGTH, TRAINED = 1024, 768
LOSS = PolicyLoss("vanilla")
QWEN2_HALF: dict[str, object] = {
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
QWEN3_4B = QWEN2_HALF | {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
EXPERTS = QWEN3_4B | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "tie_word_embeddings": False,
}
MODELS = {"Qwen2.5-0.5B": QWEN2_HALF, "Qwen3-4B": QWEN3_4B, "Qwen3-30B-A3B-4-layers": EXPERTS}
MIXED = ("model.dtype=float32", "actor.autocast=bfloat16")
HALF, LORA = ("model.dtype=bfloat16",), ("model.dtype=bfloat16", "model.lora_rank=16")
CHECKPOINTED = "model.enable_gradient_checkpointing=true"
CASES: dict[str, tuple[str, int, Sequence[str]]] = {
    "0.5B, autocast": ("Qwen2.5-0.5B", 4096, MIXED),
    "0.5B, bfloat16": ("Qwen2.5-0.5B", 4096, HALF),
    "0.5B, LoRA": ("Qwen2.5-0.5B", 4096, LORA),
    "0.5B, autocast, checkpointing": ("Qwen2.5-0.5B", 16384, (*MIXED, CHECKPOINTED)),
    "0.5B, bfloat16, checkpointing": ("Qwen2.5-0.5B", 16384, (*HALF, CHECKPOINTED)),
    "0.5B, LoRA, checkpointing": ("Qwen2.5-0.5B", 16384, (*LORA, CHECKPOINTED)),
    "0.5B, bfloat16, copied keys": ("Qwen2.5-0.5B", 4096, (*HALF, "actor.flex_attention=false")),
    "4B, bfloat16, checkpointing": ("Qwen3-4B", 16384, (*HALF, CHECKPOINTED)),
    "4B, LoRA, checkpointing": ("Qwen3-4B", 16384, (*LORA, CHECKPOINTED)),
    "experts, bfloat16, checkpointing": ("Qwen3-30B-A3B-4-layers", 16384, (*HALF, CHECKPOINTED)),
}
GIB = 2.0**30


def saved(folder: Path, model: str) -> Path:
    """Return the folder of a model with random weights.

    If the folder does not exist, create the model on the GPU and save it.
    """
    path = folder / model
    if not path.exists():
        torch.manual_seed(0)
        with torch.device("cuda"):
            made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODELS[model]), dtype=torch.bfloat16)
        made.save_pretrained(path)
        del made
        free()
    return path


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def config_for(path: Path, max_tokens: int, keys: Sequence[str]) -> RunConfig:
    count = 2 * max_tokens // LENGTH
    return compose_config(
        [
            *(f"model.path={path}", "algorithm.name=rft", "rollout.n=1", f"data.train_batch_size={count}"),
            *(f"data.max_prompt_length={LENGTH - TRAINED}", f"data.max_response_length={TRAINED}"),
            *(f"actor.ppo_max_token_len_per_gpu={max_tokens}", "+actor.optim.lr=1e-6", *keys),
        ]
    )


def samples_of(config: RunConfig) -> list[Sample]:
    """Return samples of `LENGTH` + 1 tokens; the last token is only predicted.

    The first tokens differ, so the samples share no prefix.
    """
    count, generator = config.data.train_batch_size, torch.Generator().manual_seed(0)
    rows = torch.randint(1000, 100_000, (count, LENGTH + 1), generator=generator)
    rows[:, 0] = torch.arange(count)
    mask = [0] * (LENGTH + 1 - TRAINED) + [1] * TRAINED
    ones, zeros = [1.0] * (LENGTH + 1), [0.0] * (LENGTH + 1)
    credit, behaviour = [0.5 * each for each in mask], [-12.0 * each for each in mask]
    return [
        Sample(row, mask, ones, credit, behaviour_logprobs=behaviour if sum(mask) else zeros, rollout_id=str(number))
        for number, row in enumerate(rows.tolist())
    ]


def seconds_of(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the median seconds of `repeats` calls, after a first call that is not counted.

    Each counted call ends when the GPU has finished.
    """
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure(name: str, folder: Path, hardware: str) -> None:
    """Print predicted and measured numbers of a case."""
    model, max_tokens, keys = CASES[name]
    path = saved(folder, model)
    config, shape = config_for(path, max_tokens, keys), shape_of(MODELS[model] | {"dtype": "bfloat16"})
    assert shape is not None
    samples = samples_of(config)
    report(name, config, shape, samples, hardware, steps(config, samples))
    free()


class Steps(NamedTuple):
    """Measured memory and times.

    Attributes:
        peak: most bytes that torch allocated during a step.
        held: bytes that torch holds between steps.
        seconds: seconds of a step.
        scored: seconds of a scoring pass.
    """

    peak: int
    held: int
    seconds: float
    scored: float


def steps(config: RunConfig, samples: Sequence[Sample]) -> Steps:
    """Train and score the same samples several times."""
    backend = load_torch_backend(config.model, config.actor, total_updates=100, seed=0)
    seconds = seconds_of(lambda: asyncio.run(backend.train_step(samples, LOSS)))
    peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    scored = seconds_of(lambda: asyncio.run(backend.score(samples)), 1)
    asyncio.run(backend.close())
    return Steps(peak, held, seconds, scored)


def report(
    name: str,
    config: RunConfig,
    shape: Shape,
    samples: Sequence[Sample],
    hardware: str,
    found: Steps,
) -> None:
    device, passes = parse_fleet(f"1x{hardware}").hardware, passes_of(config)
    trainer = Trainer(config, shape, layout_of(config))
    expected = without_runtime(trainer.phases()["update"])
    speed = Training(shape, layout_of(config), device, passes)
    tokens, learned = len(samples) * LENGTH, speed.learn_s(planned(samples))
    scored = Training(shape, layout_of(config), device, replace(passes, num_scored=1)).score_s(planned(samples))
    flops = 3 * flops_of(shape, len(samples))
    print(
        f"| {name} | {expected / GIB:.2f} / {found.peak / GIB:.2f} ({expected / found.peak - 1:+.0%}) "
        f"| {without_runtime(trainer.between()) / GIB:.2f} / {found.held / GIB:.2f} "
        f"| {learned:.3f} / {found.seconds:.3f} ({learned / found.seconds - 1:+.0%}) "
        f"| {scored:.3f} / {found.scored:.3f} ({scored / found.scored - 1:+.0%}) "
        f"| {tokens / found.seconds:,.0f} | {flops / found.seconds / 1e12:.0f} |",
        flush=True,
    )


def planned(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples as `agentrl plan` needs them: with positions in place of token ids."""
    return [replace(sample, token_ids=range(LENGTH)) for sample in samples]


def flops_of(shape: Shape, count: int) -> float:
    """Return the FLOPs of a forward pass over `count` samples."""
    return count * (
        LENGTH * (body_flops_per_token(shape) + head_flops_per_token(shape)) + attention_flops(shape, LENGTH)
    )


def without_runtime(parts: Mapping[str, float]) -> float:
    return sum(size for part, size in parts.items() if part != "CUDA and NCCL")


def sampled(model: str, folder: Path, hardware: str, rows: int = 128, prompt: int = 512, new: int = 128) -> None:
    """Print predicted and measured seconds of decoding and prefill, and measured seconds of publishing weights."""
    path = saved(folder, model)
    made = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, device_map="cuda").eval()
    made.generation_config.eos_token_id = None
    engine = TorchEngine(made, max_num_seqs=rows, max_sequence_length=1024, device="cuda")
    ids = torch.randint(1000, 100_000, (rows, prompt), generator=torch.Generator().manual_seed(1)).tolist()
    alone, all_rows = ([asyncio.run(ask(engine, ids, number, turn)) for number in (1, new)] for turn in range(2))
    step = (all_rows[1] - all_rows[0]) / (new - 1)
    config, shape = config_for(path, 4096, HALF), shape_of(MODELS[model] | {"dtype": "bfloat16"})
    assert shape is not None
    speed = sampling_of(config, shape, servers_of(config), parse_fleet(f"1x{hardware}").hardware)
    expected = speed.decode_s(rows, rows * (prompt + new / 2))
    print(
        f"{model}: decode step of {rows} rows {expected * 1e3:.1f} / {step * 1e3:.1f} ms, {rows / step:,.0f} tokens/s; "
        f"prefill of {rows} x {prompt} tokens {rows * speed.prefill_s(prompt, prompt):.2f} / {all_rows[0]:.2f} s "
        f"(first time {alone[0]:.2f} s); publishing {published(engine, made):.3f} s",
        flush=True,
    )
    asyncio.run(engine.close())


async def ask(engine: TorchEngine, contexts: Sequence[Sequence[int]], new: int, turn: int) -> float:
    """Return the seconds until `new` tokens are sampled for each of the contexts.

    Each call puts another token before the contexts, so no call uses the KV cache of an earlier call.
    """
    params = [SamplingParams(max_new_tokens=new, seed=number) for number in range(len(contexts))]
    changed = [[200 + new + 500 * turn, *ids] for ids in contexts]
    started = time.perf_counter()
    await asyncio.gather(*(engine.generate(GenerateRequest(*pair)) for pair in zip(changed, params, strict=True)))
    return time.perf_counter() - started


def published(engine: TorchEngine, model: Any) -> float:
    weights = [(name, value.detach().clone()) for name, value in model.named_parameters()]
    versions = iter(range(1, 100))
    return seconds_of(lambda: asyncio.run(engine.load_weights(iter(weights), next(versions))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, "sampling", []], metavar="CASE", help="default: all")
    parser.add_argument("--hardware", default="H100", help="name of a file in configs/hardware")
    options = parser.parse_args()
    logging.disable_progress_bar()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("predicted / measured")
    print("| case | most GiB in a step | GiB between steps | s of a step | s of a score | tokens/s | TFLOP/s |")
    print(f"|{'---|' * 7}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.cases or [*CASES, "sampling"]:
            if name != "sampling":
                measure(name, Path(folder), options.hardware)
        for model in MODELS if "sampling" in (options.cases or ["sampling"]) else ():
            sampled(model, Path(folder), options.hardware)
            free()


if __name__ == "__main__":
    main()
