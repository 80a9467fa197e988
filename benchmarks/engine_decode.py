"""Compare the sampling speed of the embedded engine with transformers' `generate`, in turn in one process.

    python benchmarks/engine_decode.py [--deterministic] [--model FOLDER] [--device cuda] [--rows 32 128]

In each repeat, the engine and `generate` sample the same number of tokens from the same prompts at temperature 1. The
engine also returns a log-probability for every token. The script prints the medians over the repeats and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import time
from importlib.metadata import version

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.torch.engine import TorchEngine
from agentrl.models.loading import find_device

TINY = {"vocab_size": 520, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}


def load(arguments: argparse.Namespace) -> PreTrainedModel:
    torch.manual_seed(0)
    if arguments.model is None:
        model = AutoModelForCausalLM.from_config(Qwen3Config(**TINY))
    else:
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto")
    model.generation_config.eos_token_id = None  # every answer has the requested length
    return model.eval().to(find_device(arguments.device, "--device"))


def prompts_of(rows: int, length: int, vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, vocabulary, (rows, length), generator=generator).tolist()


async def with_engine(engine: TorchEngine, prompts: list[list[int]], num_tokens: int) -> float:
    vocabulary = engine.model.get_input_embeddings().num_embeddings
    start = time.perf_counter()
    params = [
        SamplingParams(max_new_tokens=num_tokens, seed=i, stop_token_ids=(vocabulary,)) for i in range(len(prompts))
    ]
    await asyncio.gather(*[engine.generate(GenerateRequest(ids, p)) for ids, p in zip(prompts, params, strict=True)])
    return time.perf_counter() - start


@torch.inference_mode()
def with_generate(model: PreTrainedModel, prompts: list[list[int]], num_tokens: int) -> float:
    start = time.perf_counter()
    ids = torch.tensor(prompts, device=model.device)
    options = {"do_sample": True, "top_k": 0, "pad_token_id": 0}
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, **options).tolist()
    return time.perf_counter() - start


async def compare(arguments: argparse.Namespace, rows: int) -> None:
    engine_model, model = load(arguments), load(arguments)
    prompts = prompts_of(rows, arguments.prompt, model.config.get_text_config().vocab_size)
    length = arguments.prompt + arguments.tokens
    engine = TorchEngine(
        engine_model, max_num_seqs=rows, max_sequence_length=length, deterministic=arguments.deterministic
    )
    times: dict[str, list[float]] = {"engine": [], "generate": []}
    for repeat in range(arguments.repeats + 1):  # the first repeat is a warm-up and not counted
        found = await with_engine(engine, prompts, arguments.tokens), with_generate(model, prompts, arguments.tokens)
        if repeat:
            for name, seconds in zip(times, found, strict=True):
                times[name].append(seconds)
    await engine.close()
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    speeds = ", ".join(f"{name} {rows * arguments.tokens / seconds:8.0f} tokens/s" for name, seconds in medians.items())
    print(f"{rows:4d} rows: {speeds}, ratio {medians['generate'] / medians['engine']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder of a causal language model; a tiny random one if none is given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--prompt", type=int, default=54, help="prompt tokens a row")
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens a row")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--deterministic", action="store_true")
    arguments = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    print(f"{versions}, python {platform.python_version()}, {torch.get_num_threads()} threads, {arguments}")
    for rows in arguments.rows:
        asyncio.run(compare(arguments, rows))


if __name__ == "__main__":
    main()
