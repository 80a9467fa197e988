"""Runs of a model with random weights, whose output is always parsed as tool calls.

Its tools and simulated user take as long as `clock` specifies, so calls and rollouts end in a different order each
time.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from zlib import crc32

import pytest
import yaml

from agentrl.agent_loops.react import ReactAgent
from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.hermes import HermesParser
from agentrl.config import validate_config
from agentrl.interactions.base import BaseInteraction
from agentrl.tools.function import tool
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.run import run_training

MOST_S = 0.02
FORMAT, LOOP = "babble", "babbling_react"
ended: list[str] = []
"""The calls of a run in the order in which they ended."""


class Babble(HermesParser):
    """A parser that finds calls in any text of a model with random weights; turns end at the first of these letters."""

    stop = tuple("aeiort149")

    def parse(self, text: str) -> ParsedTurn:
        """Up to three calls; some are malformed."""
        if "<tool_call>" in text:
            return super().parse(text)
        number = crc32(text.encode("utf-8", "replace"))
        calls = [self._call(number >> shift) for shift in range(number % 4)]
        return ParsedTurn(text, tuple(calls))

    def _call(self, number: int) -> ParsedCall:
        error = "half of it is missing." if number % 7 == 0 else None
        return ParsedCall(("waits", "blocks")[number % 2], json.dumps({"number": number % 100}), error)


@pytest.fixture(autouse=True, scope="module")
def babble_is_known():
    """Registers the format for modules that import this fixture only, because other tests list all formats."""
    tool_parsers.register(FORMAT)(Babble)
    yield
    del tool_parsers._objects[FORMAT]


class BabblingReact(ReactAgent):
    tool_format = FORMAT


class Nagging(BaseInteraction):
    """A simulated user that asks again, twice, with delays."""

    async def generate_response(self, instance_id, messages, **kwargs):
        await asyncio.sleep(delay())
        num_said = sum(message["role"] == "assistant" for message in messages)
        return num_said > 4, f"Again, {len(str(messages)) % 10}.", 0.1 * num_said, {}

    async def calculate_score(self, instance_id, **kwargs):
        return 0.5


def delay() -> float:
    return clock.random() * MOST_S


clock = random.Random()


@tool(deterministic=True)
async def waits(number: int) -> str:
    """Answer.

    Args:
        number: which.
    """
    await asyncio.sleep(delay())
    ended.append(f"waits {number}")
    return str(number * 7)


@tool(deterministic=True)
def blocks(number: int) -> str:
    """Answer.

    Args:
        number: which.
    """
    time.sleep(delay())
    ended.append(f"blocks {number}")
    return str(number * 3)


REWARD = """
from zlib import crc32

def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": crc32(solution_str.encode()) % 5 / 4, "length": len(solution_str)}
"""


def train(
    task_folder: Path, folder: Path, run: Path, seed: int = 0, users: bool = True, **trainer: object
) -> list[str]:
    """Run with delays drawn from `seed`; returns the order in which its calls ended.

    Args:
        folder: where `train.jsonl`, `reward.py`, `users.yaml` and `loops.yaml` are written.
        users: whether a simulated user replies.
    """
    (folder / "reward.py").write_text(REWARD)
    (folder / "loops.yaml").write_text(yaml.safe_dump([{"name": LOOP, "_target_": "babbling.BabblingReact"}]))
    rows = [json.loads(line) for line in (task_folder / "train.jsonl").read_text().splitlines()[:12]]
    for number, row in enumerate(rows):
        row["agent_name"] = ("tool_agent", LOOP)[number % 2]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    nagging = [{"name": "nagging", "class_name": "babbling.Nagging", "config": {}}]
    (folder / "users.yaml").write_text(yaml.safe_dump({"interaction": nagging}))
    limits = {
        "format": FORMAT,
        "interaction_config_path": folder / "users.yaml" if users else None,
        "max_assistant_turns": 6,
        "max_turn_tokens": 24,
        "max_parallel_calls": 3,
    }
    agent = {"default_agent_loop": "tool_agent", "agent_loop_config_path": folder / "loops.yaml"}
    config = validate_config(
        {
            "model": {"path": str(task_folder / "model")},
            "data": {
                "train_files": [str(folder / "train.jsonl")],
                "val_files": [str(folder / "train.jsonl")],
                "val_max_samples": 4,
                "train_batch_size": 4,
                "max_prompt_length": 400,
                "max_response_length": 240,
            },
            "rollout": {"n": 4, "deterministic": True, "max_num_seqs": 16, "agent": agent, "multi_turn": limits},
            "actor": {"optim": {"lr": 1e-3}},
            "reward": {"custom_reward_function": {"path": folder / "reward.py"}},
            "trainer": {
                "default_local_dir": run,
                "total_training_steps": 2,
                "max_concurrent_rollouts": 7,
                "logger": ["jsonl"],
                **trainer,
            },
        }
    )
    clock.seed(seed)
    ended.clear()
    run_training(config, UserObjects([waits, blocks]))
    return list(ended)
