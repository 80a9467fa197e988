"""Measure the hit rate of SGLang's radix cache for later turns of the calculator task, with a real server.

    python benchmarks/sglang_cache.py [--steps 3]

The rollouts use the cold-started model, 16 tasks x 8 rollouts at a time. The context of a later turn has an old part
(prompt, earlier turns and tool answers) and a new part (the last tool answer with its template tokens). New tokens are
cached only if another rollout of the group got the same tool answer earlier. So the script reports two cached shares of
later turns: of the complete context, and of the old part.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from vs_trl import ROOT, start_of

from agentrl.cli.compose import compose_config
from agentrl.engines.base import Completion, GenerateRequest
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.builders.run import open_run
from agentrl.trainer.loop import train


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: turn number (from 1), tokens in the context, tokens in its old part, and cached tokens."""

    number: int
    num_context: int
    num_before: int
    num_cached: int


class Turns:
    """Wraps an engine's `generate` and records every turn."""

    def __init__(self, generate) -> None:
        self._generate = generate
        self._said: dict[str, tuple[int, int]] = {}
        self.noted: list[Turn] = []

    async def __call__(self, request: GenerateRequest) -> Completion:
        number, num_before = self._said.get(request.session, (0, 0))
        completion = await self._generate(request)
        num_context = len(request.token_ids)
        self.noted.append(Turn(number + 1, num_context, num_before, completion.num_cached_tokens))
        self._said[request.session] = number + 1, num_context + len(completion.token_ids)
        return completion


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--engine", default="sglang", choices=["sglang", "torch"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    turns = asyncio.run(roll_out(arguments.engine, arguments.steps))
    for line in table(turns):
        print(line)


async def roll_out(engine: str, num_steps: int) -> list[Turn]:
    """Return the turns of the rollouts of `num_steps` steps, without training."""
    start, folder = start_of("qwen3"), ROOT / ".cache/sglang_cache"
    shutil.rmtree(folder, ignore_errors=True)
    overrides = (
        *(f"model.path={start}/sft/checkpoints/latest", f"data.train_files=[{start}/task/train.jsonl]"),
        *("data.val_files=[]", "trainer.mode=rollout_only", "trainer.stop_when=null", "trainer.logger=[jsonl]"),
        *(f"rollout.engine={engine}", "rollout.deterministic=false", f"trainer.total_training_steps={num_steps}"),
        *(f"trainer.default_local_dir={folder}", "trainer.test_freq=0"),
    )
    async with open_run(compose_config(["+experiment=calculator", *overrides]), UserObjects()) as opened:
        engine_of_run = opened.rollouts.engine
        engine_of_run.generate = turns = Turns(engine_of_run.generate)
        await train(opened.parts)
    return turns.noted


def table(turns: Iterable[Turn]) -> list[str]:
    """Return one line per turn number, and one line for all turns after the first together."""
    turns = list(turns)
    numbers = sorted({turn.number for turn in turns})
    lines = [f"turn {number}: {shares([turn for turn in turns if turn.number == number])}" for number in numbers]
    return [*lines, f"turn 2 and later: {shares([turn for turn in turns if turn.number > 1])}"]


def shares(turns: list[Turn]) -> str:
    """Return, as text, the number of these turns, their context tokens, and the cached shares."""
    num_context, num_before = (sum(each) for each in zip(*((t.num_context, t.num_before) for t in turns), strict=True))
    num_cached = sum(turn.num_cached for turn in turns)
    num_again = sum(min(turn.num_cached, turn.num_before) for turn in turns)
    of_before = f", {num_again / num_before:.1%} of the {num_before} sent before" if num_before else ""
    return f"{len(turns)} requests, {num_cached / num_context:.1%} of {num_context} tokens cached{of_before}"


if __name__ == "__main__":
    main()
