"""Run GRPO on the calculator task with TRL's GRPOTrainer, in TRL's virtual environment; write a JSON line per step.

    .cache/peers/trl/bin/python benchmarks/peers/trl_calculator.py --model FOLDER --train FILE --out FILE

Time is measured by code that wraps TRL's methods and does not change their results. `--save-every` saves the model
between steps.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

sys.path.append(str(Path(__file__).parents[2] / "examples/calculator"))
from reward import compute_score  # only the reward: the example's tool needs agentrl, which is not installed here

OPERATION = re.compile(r"\s*(-?\d{1,9})\s*([-+*])\s*(-?\d{1,9})\s*")


def calculator(expression: str):  # no "-> str": it would appear in the prompt, and the model was trained without it
    """Compute one operation.

    Args:
        expression: two integers joined by +, - or *
    """
    match = OPERATION.fullmatch(expression)
    if match is None:
        return "error"
    a, b = int(match[1]), int(match[3])
    return str({"+": a + b, "-": a - b, "*": a * b}[match[2]])


def success(completions: list[list[dict[str, Any]]], ground_truth: list[str], **_: object) -> list[float]:
    """Return the reward of each conversation, from its last turn."""
    last_turns = [turns[-1]["content"] if turns[-1]["role"] == "assistant" else "" for turns in completions]
    return [
        compute_score("calculator", "", truth, {"last_turn": turn})
        for turn, truth in zip(last_turns, ground_truth, strict=True)
    ]


class MeasuredTrainer(GRPOTrainer):
    """GRPOTrainer that measures the time to prepare a batch: rollouts and rewards."""

    rollout_s = 0.0
    response_tokens = num_turns = 0
    reward = 0.0

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        start_s = time.perf_counter()
        inputs = super()._prepare_inputs(generation_batch)
        self.rollout_s += time.perf_counter() - start_s
        self.response_tokens += int(inputs["completion_mask"].sum())
        return inputs

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.num_turns = sum(message["role"] == "assistant" for turns in completions for message in turns)
        self.reward = float(rewards.nansum(-1).mean())
        return rewards


class Recorder(TrainerCallback):
    """Writes one line per step and saves the model every `save_every` steps; the time to save is not counted."""

    def __init__(self, out: Path, save_every: int, num_rollouts: int) -> None:
        self.trainer: MeasuredTrainer | None = None
        self._out, self._save_every, self._num_rollouts = out, save_every, num_rollouts

    def on_step_begin(self, *_: object, **__: object) -> None:
        self.trainer.rollout_s, self.trainer.response_tokens = 0.0, 0
        self._start_s, self._start_cpu_s = time.perf_counter(), time.process_time()

    def on_step_end(self, args: object, state: Any, control: object, **_: object) -> None:
        step_s, cpu_s = time.perf_counter() - self._start_s, time.process_time() - self._start_cpu_s
        row = {
            "step": state.global_step,
            "step_s": step_s,
            "rollout_s": self.trainer.rollout_s,
            "training_s": step_s - self.trainer.rollout_s,
            "cpu_s": cpu_s,
            "turns": self.trainer.num_turns / self._num_rollouts,
            "response_tokens": self.trainer.response_tokens / self._num_rollouts,
            "reward": self.trainer.reward,
        }
        with self._out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if self._save_every and state.global_step % self._save_every == 0:
            self.trainer.save_model(str(self._out.with_suffix("") / f"step-{state.global_step}"))


def config_of(arguments: argparse.Namespace) -> GRPOConfig:
    num_rollouts = arguments.prompts * arguments.group
    return GRPOConfig(
        output_dir=str(arguments.out.with_suffix("")),
        use_cpu=True,
        bf16=False,
        seed=arguments.seed,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=10**6,
        max_steps=arguments.steps,
        learning_rate=5e-4,
        lr_scheduler_type="constant",
        warmup_steps=0,
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        per_device_train_batch_size=arguments.micro,
        gradient_accumulation_steps=num_rollouts // arguments.micro,
        gradient_checkpointing=False,
        num_generations=arguments.group,
        num_iterations=1,
        max_completion_length=192,
        generation_kwargs={"max_new_tokens": 48},  # per turn; without this limit, an endless turn delays all others
        max_tool_calling_iterations=arguments.turns - 1,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        scale_rewards="group",
        loss_type="dapo",  # the mean over all tokens of the batch
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--train", type=Path, required=True, help="JSON lines with prompt and ground_truth")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--micro", type=int, default=16, help="rollouts per forward pass in training")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    names = ("trl", "transformers", "torch", "accelerate")
    arguments.out.write_text(json.dumps({name: version(name) for name in names}) + "\n", encoding="utf-8")
    rows = [json.loads(line) for line in arguments.train.read_text(encoding="utf-8").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    tokenizer.response_template = qwen3_template  # how calls are parsed: hermes, the model's format
    recorder = Recorder(arguments.out, arguments.save_every, arguments.prompts * arguments.group)
    trainer = MeasuredTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="sdpa"),
        reward_funcs=success,
        args=config_of(arguments),
        train_dataset=Dataset.from_list([{key: row[key] for key in ("prompt", "ground_truth")} for row in rows]),
        processing_class=tokenizer,
        tools=[calculator],
        callbacks=[recorder],
    )
    recorder.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
