"""Compare training with two processes (FSDP2), one core each, to training with one process.

    python benchmarks/several_devices.py [train] [calls] [split] [publish] [save]

- train: tokens/s of `train_step`, for the quickstart's model and for a model of 107M parameters. The script measures
  four cases: one process, two processes, two processes with `actor.reshard_after_forward=false`, and two processes that
  exchange nothing.
- calls: time that rank 0 spends on a step in addition to the computation: it assigns, pickles and sends the samples,
  and reads the answers.
- split: time to assign 1,000 to 100,000 samples to 8 ranks.
- publish: time to read all weights of a sharded model and load them into another model, compared with a plain copy.
- save: seconds that a step waits for a checkpoint, with and without `trainer.async_save`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import Backend, ModelRequest
from agentrl.backends.fsdp.assignment import assign
from agentrl.backends.fsdp.backend import FsdpBackend
from agentrl.backends.fsdp.ranks import STORE, Ranks, join
from agentrl.backends.torch.backend import load_torch_backend
from agentrl.backends.torch.gradients import mini_batch
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.models.weights_in_place import load_in_place
from agentrl.registry import child_path, load_object
from agentrl.types.sample import Sample

NUM_RANKS = 2
NUM_REPEATS = int(os.environ.get("REPEATS", "5"))
SERVE = "import sys, torch; torch.set_num_threads(1); from agentrl.backends.fsdp.ranks import serve; sys.exit(serve())"
SIZES = {
    "quickstart": {"vocab_size": 520, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2},
    "107M": {"vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 13},
    "500M": {"vocab_size": 32768, "hidden_size": 1280, "intermediate_size": 3840, "num_hidden_layers": 23},
}
LOSS = PolicyLoss("vanilla")


@contextmanager
def ranks_of(folder: Path) -> Iterator[Ranks]:
    """Yield the joined ranks: this process is rank 0, new processes are the other ranks."""
    os.environ |= {"WORLD_SIZE": str(NUM_RANKS), STORE: str(folder / "store"), "PYTHONPATH": child_path()}
    others = [
        subprocess.Popen([sys.executable, "-c", SERVE], env={**os.environ, "RANK": str(rank)})
        for rank in range(1, NUM_RANKS)
    ]
    os.environ["RANK"] = "0"
    ranks = join()
    try:
        yield ranks
    finally:
        ranks.close()
        for process in others:
            process.wait(60)


def make_request(folder: Path, size: str, *, trainable: bool = True) -> ModelRequest:
    path = folder / size
    if not path.exists():
        torch.manual_seed(0)
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": SIZES[size]["hidden_size"] // 4}
        AutoModelForCausalLM.from_config(Qwen3Config(**SIZES[size], **heads)).save_pretrained(path)
    actor = ActorConfig.model_validate({"device": "cpu", "ppo_max_token_len_per_gpu": 16384})
    return ModelRequest(ModelConfig(path=str(path), dtype="float32"), actor, total_updates=100, trainable=trainable)


def make_samples(num_samples: int, num_tokens: int, seed: int = 0) -> list[Sample]:
    """Return samples of `num_tokens` / 2 to `num_tokens` tokens; the second half of each sample is trained."""
    draw = random.Random(seed)
    found = []
    for number in range(num_samples):
        size = draw.randint(num_tokens // 2, num_tokens)
        mask = [int(position >= size // 2) for position in range(size)]
        token_ids = [draw.randrange(500) for _ in range(size)]
        numbers = [draw.uniform(-1, 0) * trained for trained in mask]
        found.append(Sample(token_ids, mask, [1.0] * size, numbers, numbers, rollout_id=f"r{number}"))
    return found


def median_s(work: Callable[[], object], repeats: int = NUM_REPEATS) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def train(ranks: Ranks, folder: Path) -> None:
    """Measure `train_step`: in each round, every case runs the same step, one case after another.

    Before the rounds, every case runs a short step that is not measured. In the last case, two processes each train
    their own model at the same time. These processes exchange nothing, so their speed is the highest that two processes
    can reach on this machine.
    """
    for size, num_samples, num_tokens in (("quickstart", 128, 100), ("107M", 128, 160)):
        request, samples = make_request(folder, size), make_samples(num_samples, num_tokens)
        two, complete = (FsdpBackend(ranks, each, seed=0) for each in (request, without_resharding(request)))
        one = load_torch_backend(request.model, request.actor, total_updates=100, seed=0)
        with another_process(train_alone, folder, size, samples) as other:
            rounds = []
            for backend in (one, two, complete):
                step(backend, samples[:8])
            for _ in range(NUM_REPEATS):
                found = [median_s(partial(step, backend, samples), 1) for backend in (one, two, complete)]
                other.send("step")
                # two steps run at the same time: the mean of their times, divided by 2 steps
                found.append((median_s(partial(step, one, samples), 1) + other.recv()) / 4)
                rounds.append(tuple(found))
        close(one, two, complete)
        names = ("one process", "two processes", "two without resharding", "two processes with a model each")
        report(f"train {size}", names, sum(len(sample.token_ids) for sample in samples), rounds)


def without_resharding(request: ModelRequest) -> ModelRequest:
    return replace(request, actor=request.actor.model_copy(update={"reshard_after_forward": False}))


def train_alone(connection: Connection, folder: Path, size: str, samples: list[Sample]) -> None:
    """Run a step for each message and answer with its seconds; end at an empty message."""
    torch.set_num_threads(1)
    request = make_request(folder, size)
    backend = load_torch_backend(request.model, request.actor, total_updates=100, seed=0)
    step(backend, samples[:8])
    while connection.recv():
        connection.send(median_s(partial(step, backend, samples), 1))


@contextmanager
def another_process(work: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Call `work` in a new process; yield a connection to it, and send an empty message at the end."""
    own, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(other, *arguments))
    process.start()
    yield own
    own.send("")
    process.join()


def report(what: str, names: Sequence[str], num_tokens: int, rounds: Sequence[tuple[float, ...]]) -> None:
    """Print the tokens/s of each case, and its speed relative to the first case.

    Args:
        names: names of the cases.
        num_tokens: tokens of a step.
        rounds: for each round, the seconds of a step in each case.
    """
    for number, name in enumerate(names):
        ratios = sorted(each[0] / each[number] for each in rounds)
        speed = num_tokens / statistics.median(each[number] for each in rounds)
        times = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) x {names[0]}"
        print(f"{what}: {speed:,.0f} tokens/s, {name}: {times}", flush=True)


def step(backend: Backend, samples: list[Sample]) -> None:
    asyncio.run(backend.train_step(samples, LOSS))


def calls(ranks: Ranks, folder: Path) -> None:
    samples = make_samples(128, 600)
    batch, answer = mini_batch(samples, LOSS), load_object("several_devices:received")  # not of __main__

    def call() -> None:
        parts = [batch.part(own) for own in assign(samples, ranks.size)]
        ranks.each(answer, [(part,) for part in parts])

    empty = median_s(lambda: ranks.each(answer, [(None,)] * ranks.size), 50)
    print(f"calls: {empty * 1e3:.2f} ms an empty call, {median_s(call, 20) * 1e3:.1f} ms with 128 samples")


def received(ranks: Ranks, _: Any) -> None:
    """Answer immediately. Any: a part of a mini-batch, or None."""


def split(ranks: Ranks, folder: Path) -> None:
    for number in (1_000, 10_000, 100_000):
        samples = make_samples(number, 64)
        print(f"split: {median_s(partial(assign, samples, 8), 3) * 1e3:,.1f} ms for {number:,} samples")


def publish(ranks: Ranks, folder: Path) -> None:
    for size in ("quickstart", "500M"):
        request = make_request(folder, size, trainable=False)
        engine = AutoModelForCausalLM.from_pretrained(request.model.path, dtype=torch.float32)
        pairs = [(value.detach(), value.detach().clone()) for value in engine.parameters()]
        plain = median_s(lambda pairs=pairs: [target.copy_(value) for value, target in pairs])
        del pairs
        backend = FsdpBackend(ranks, request, seed=0)
        took = median_s(lambda each=backend, model=engine: load_in_place(model, each.weights()))
        print(f"publish {size}: {took * 1e3:,.1f} ms, {took / plain:.1f} x a plain copy ({plain * 1e3:,.2f} ms)")
        close(backend)


def save(ranks: Ranks, folder: Path) -> None:
    backend = FsdpBackend(ranks, make_request(folder, "107M"), seed=0)
    step(backend, make_samples(2, 32))
    seconds = median_s(lambda: asyncio.run(backend.save(folder / "saved")), 3)
    size = sum(file.stat().st_size for file in (folder / "saved").rglob("*") if file.is_file())
    print(f"save 107M: the step waits {seconds:.2f} s for {size / 1e9:.2f} GB")
    waits, writes = zip(*(in_background(backend, folder / f"later-{number}") for number in range(3)), strict=True)
    print(f"save 107M, trainer.async_save: the step waits {statistics.median(waits):.2f} s;", end=" ")
    print(f"the files are complete after {statistics.median(writes):.2f} s")
    close(backend)


def in_background(backend: Backend, folder: Path) -> tuple[float, float]:
    """Return the seconds until the next step may start, and until all files are written. No step runs meanwhile."""
    folder.mkdir()
    started = time.perf_counter()
    files = asyncio.run(backend.begin_save(folder))
    waited_s = time.perf_counter() - started
    files.result()
    written_s = time.perf_counter() - started
    shutil.rmtree(folder)
    return waited_s, written_s


def close(*backends: Backend) -> None:
    for backend in backends:
        asyncio.run(backend.close())


PARTS = {part.__name__: part for part in (train, calls, split, publish, save)}


def run(parts: dict[str, Callable[[Ranks, Path], None]], names: Sequence[str]) -> None:
    """Run the named parts; all parts if `names` is empty."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root, ranks_of(Path(root)) as ranks:
        for name in names or parts:
            parts[name](ranks, Path(root))


if __name__ == "__main__":
    run(PARTS, sys.argv[1:])
