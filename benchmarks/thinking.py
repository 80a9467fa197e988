"""Measure what `rollout.multi_turn.thinking=strip` costs, compared with `keep`.

    OMP_NUM_THREADS=1 python benchmarks/thinking.py [--pairs 5] [--groups 4]

A scripted model thinks in every turn and answers several questions of a user. With `strip` and `keep`, the model writes
the same turns. The template is like Qwen3's: it drops thoughts before the last question.

For each case (number of questions, words per thought), the script prints:

- the share of trained tokens whose context differs between `strip` and `keep`
- trajectories per rollout, trained tokens, prompt tokens that further trajectories repeat, and the longest context
- the CPU time of a rollout, and of a training step with and without `actor.share_prefixes`

In each round, every combination of `thinking` and `actor.share_prefixes` runs one training step. Printed times of steps
and ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import agent_loop  # noqa: F401  # finds the modules of the tests
import torch
from chat_families import family_tokenizer
from shared_prefixes import TINY
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.algos.credit import credited, samples_of
from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.chat.format import ChatFormat
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.config.run import RunConfig
from agentrl.engines.base import SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.interactions.base import BaseInteraction
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Group, Rollout
from agentrl.types.sample import Sample
from agentrl.types.task import Task

GROUP_SIZE = 8
CASES = [(2, 20), (2, 100), (4, 20), (4, 100), (8, 20)]
"""(questions, words per thought)."""
WORDS = ["the", "result", "is", "weather", "answer", "search", "hello", "query", "would", "know", "that", "world"]
CHAT = ChatFormat(family_tokenizer("thinking"))


class Questions(BaseInteraction):
    """Asks further questions until the conversation has `number` questions; the first one is the task."""

    def __init__(self, number: int) -> None:
        super().__init__({})
        self.number = number

    async def generate_response(self, instance_id: str, messages: list[dict[str, str]], **kwargs: object) -> object:
        asked = sum(message["role"] == "user" for message in messages)
        return asked >= self.number, f"And what would the answer number {asked} be?", 0.0, {}


def turns(number: int, num_words: int, draw: random.Random) -> list[str]:
    """Return the text that the model writes in each turn of a rollout."""
    thoughts = [" ".join(draw.choices(WORDS, k=num_words)) for _ in range(number)]
    return [f"<think>\n{each}\n</think>\n\nThe answer is {draw.randrange(1000)}." for each in thoughts]


async def rolled_out(thinking: str, number: int, num_words: int, num_groups: int) -> tuple[list[Group], float]:
    """Return the groups, and the seconds of CPU time of their rollouts."""
    draw, groups, start = random.Random(0), list[Group](), time.process_time()
    data = {"max_prompt_length": 2000, "max_response_length": 20_000}
    agent, multi_turn = {"default_agent_loop": "tool_agent"}, {"thinking": thinking}
    keys = {"model": {"path": "none"}, "data": data, "rollout": {"agent": agent, "multi_turn": multi_turn}}
    config = RunConfig.model_validate(keys)
    for group in range(num_groups):
        task = Task([{"role": "user", "content": f"What is the answer to {group}?"}], uid=str(group))
        rollouts = list[Rollout]()
        for seed in range(GROUP_SIZE):
            replies = turns(number, num_words, draw)
            engine = ScriptedEngine(replies, tokenizer=CHAT.tokenizer, stop_token_id=CHAT.stop_token_ids[0])
            toolbox, users = Toolbox([], config.rollout.multi_turn), {"user": Questions(number)}
            runner = RolloutRunner(engine, CHAT, toolbox, None, config, interactions=users)
            rollouts.append(await runner.run(task, SamplingParams(), seed=seed))
        groups.append(Group(task, rollouts))
    return groups, time.process_time() - start


@dataclass(frozen=True)
class Figures:
    """Counts of rollouts, trajectories and tokens."""

    num_rollouts: int
    num_trajectories: int
    num_trained: int
    num_repeated: int
    longest: int


def figures(groups: Sequence[Group]) -> Figures:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    trajectories = [each for rollout in rollouts for each in rollout.trajectories]
    further = [each for rollout in rollouts for each in rollout.trajectories[1:]]
    return Figures(
        len(rollouts),
        len(trajectories),
        sum(each.num_trained_tokens for each in trajectories),
        sum(len(each.segments[0]) for each in further),
        max(len(each.token_ids) for each in trajectories),
    )


def contexts(groups: Sequence[Group]) -> list[tuple[list[int], int]]:
    """Return (context, number of sampled tokens) of every model turn."""
    found = []
    for trajectory in (each for group in groups for rollout in group.rollouts for each in rollout.trajectories):
        start = 0
        for segment in trajectory.segments:
            if segment.author.trained:
                found.append((list(trajectory.token_ids[:start]), len(segment)))
            start += len(segment)
    return found


def share_elsewhere(kept: Sequence[Group], stripped: Sequence[Group]) -> float:
    """Return the share of trained tokens whose context differs between `keep` and `strip`."""
    pairs = list(zip(contexts(kept), contexts(stripped), strict=True))
    differ = sum(length for (one, length), (other, _) in pairs if one != other)
    return differ / sum(length for (_, length), _ in pairs)


def samples(groups: Sequence[Group]) -> list[Sample]:
    draw = random.Random(0)
    value = {f"{group.uid}/{number}": draw.uniform(-1, 1) for group in groups for number in range(GROUP_SIZE)}
    return [credited(sample, value[sample.rollout_id]) for sample in samples_of(groups)]


def load(path: Path, share: bool) -> TorchBackend:
    actor = {"share_prefixes": share, "ppo_max_token_len_per_gpu": 8192, "device": "cpu", "optim": {"lr": 1e-4}}
    config = ActorConfig.model_validate(actor)
    return load_torch_backend(ModelConfig(path=str(path)), config, total_updates=1000, seed=0)


def cpu_seconds(backend: TorchBackend, given: list[Sample]) -> float:
    """Return the CPU seconds of a training step. On a busy machine, CPU time varies less than wall-clock time."""
    start = time.process_time()
    asyncio.run(backend.train_step(given, PolicyLoss("vanilla")))
    return time.process_time() - start


def make_model(folder: Path) -> Path:
    torch.manual_seed(0)
    config = {**TINY, "vocab_size": len(CHAT.tokenizer), "max_position_embeddings": 8192}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **config)).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--cases", type=int, default=len(CASES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = make_model(Path(folder))
        for number, num_words in CASES[: options.cases]:
            made = {
                each: asyncio.run(rolled_out(each, number, num_words, options.groups)) for each in ("keep", "strip")
            }
            kept, stripped = made["keep"][0], made["strip"][0]
            report(number, num_words, made, share_elsewhere(kept, stripped))
            kinds = [(thinking, share) for thinking in made for share in (False, True)]
            backends = {kind: load(path, kind[1]) for kind in kinds}
            given = {thinking: samples(groups) for thinking, (groups, _) in made.items()}
            rounds = [
                {kind: cpu_seconds(backends[kind], given[kind[0]]) for kind in kinds} for _ in range(options.pairs + 1)
            ][1:]
            for thinking, share in kinds:
                median = statistics.median(each[thinking, share] for each in rounds)
                ratio = statistics.median(each[thinking, share] / each["keep", share] for each in rounds)
                name = "shared" if share else "padded"
                print(f"    step of {thinking:5} {name}: {median:.3f} s, {ratio:.2f} of keep")


def report(number: int, num_words: int, made: dict[str, tuple[list[Group], float]], elsewhere: float) -> None:
    print(f"{number} questions, {num_words} words per thought; {elsewhere:.0%} of trained tokens in another context")
    for thinking, (groups, cpu_s) in made.items():
        found = figures(groups)
        print(
            f"    {thinking:5} {found.num_trajectories / found.num_rollouts:.1f} trajectories per rollout,"
            f" {found.num_trained} trained tokens, {found.num_repeated} repeated prompt tokens,"
            f" longest context {found.longest}, {1e3 * cpu_s / found.num_rollouts:.1f} ms of CPU time per rollout"
        )


if __name__ == "__main__":
    main()
