"""Last part of a subcommand's help: examples and the most important keys."""

from __future__ import annotations

from agentrl.config.document import describe_config

_EXAMPLES = """\
examples:
  agentrl train model.path=Qwen/Qwen3-0.6B data.train_files=rows.jsonl reward.custom_reward_function.path=reward.py
  agentrl train +experiment=calculator algorithm.name=gspo
  agentrl train --config run.yaml actor.optim.lr=1e-5 --dry-run --explain
  agentrl train --resume outputs/default/latest

main keys (`agentrl config WORD` finds others; null: chosen automatically and shown at the start):
"""
_KEYS = (
    *("model.path", "model.lora_rank", "data.train_files", "data.val_files", "data.train_batch_size"),
    *("data.max_prompt_length", "data.max_response_length", "algorithm.name", "actor.optim.lr"),
    *("actor.use_kl_loss", "rollout.n", "rollout.temperature", "rollout.engine"),
    *("rollout.multi_turn.function_tool_path", "rollout.multi_turn.max_assistant_turns"),
    *("reward.custom_reward_function.path", "reward.name", "trainer.total_epochs", "trainer.total_training_steps"),
    *("trainer.test_freq", "trainer.default_local_dir"),
)


def of_train() -> str:
    """Examples, and one line per key with its default and the start of its description."""
    described = {key: (default, sentence) for key, default, sentence in describe_config()}
    return _EXAMPLES + "\n".join(_line(key, *described[key]) for key in _KEYS)


def _line(key: str, default: str, sentence: str) -> str:
    short = sentence.split(". ")[0].split(";")[0].split("\n")[0].rstrip(".")
    shown = "" if default == "(must be given)" else "null" if default == "None" else default
    return f"  {f'{key}={shown}':<56} {short}"
