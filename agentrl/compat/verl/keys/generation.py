"""verl's keys of `main_generation`, and of `main_generation_server`, which uses the PPO keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.compat.verl.keys.adjust import adjust_generation
from agentrl.compat.verl.keys.data import DATA, MODEL
from agentrl.compat.verl.keys.reward import REWARD
from agentrl.compat.verl.keys.rollout import SAMPLING, SERVING, TURNS
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row
from agentrl.compat.verl.keys.table import KeyTable
from agentrl.compat.verl.keys.trainer import TRAINER

_IN_PPO = "actor_rollout_ref."
_OLD_MODEL = tuple(f"{_IN_PPO}model.{key}" for key in ("path", "external_lib", "lora_adapter_path"))
_NOTHING_TRAINED = "nothing is trained"
_IN_ORDER = "every row is generated once, in the order of the files"
_OUTPUT_NOTE = "rows with a column `responses`; the folder next to this file, with the same name, has the trajectories"
_DO_SAMPLE_NOTE = "false is greedy, like a temperature of 0"


def _top_k(value: object) -> int:
    """Read top_k: 0 (all tokens in verl's Hugging Face rollout) becomes -1."""
    return int(str(value)) or -1


def _output(key: str) -> Mapped:
    return Mapped(key, "data.output_path", note=_OUTPUT_NOTE)


def _changed(rows: Sequence[Row], changes: Sequence[Row], prefix: str = "") -> Iterator[Row]:
    """Yield `rows` with `prefix` removed from their keys, then `changes`. Rows that `changes` replaces are left out.

    A change with the key `x.*` replaces all rows below x.
    """
    keys = {row.key for row in changes}
    for row in rows:
        row = replace(row, key=row.key.removeprefix(prefix))
        parts = row.key.split(".")
        above = {".".join(parts[:length]) + ".*" for length in range(1, len(parts))}
        if row.key not in keys and not above & keys:
            yield row
    yield from changes


def _greedy(prefix: str) -> tuple[Row, ...]:
    return (
        Mapped(f"{prefix}rollout.do_sample", (), note=_DO_SAMPLE_NOTE),
        Hint(f"{prefix}rollout.val_kwargs.*", "generation uses rollout.temperature, top_p and top_k"),
    )


_SERVER_CHANGES: tuple[Row, ...] = (
    _output("data.output_path"),
    *_greedy(_IN_PPO),
    Mapped(f"{_IN_PPO}rollout.top_k", "rollout.top_k", -1, _top_k, "verl's generation server ignores it"),
    *(Hint(f"data.{key}", _IN_ORDER) for key in ("shuffle", "seed", "dataset_weights", "val_files", "val_max_samples")),
    *(Hint(key, _NOTHING_TRAINED) for key in (f"{_IN_PPO}actor.*", f"{_IN_PPO}ref.*", "actor.*", "algorithm.*")),
    Hint(f"{_IN_PPO}model.mtp.*", _NOTHING_TRAINED),
    *(
        Hint(f"trainer.{key}", _NOTHING_TRAINED)
        for key in (
            *("total_epochs", "total_training_steps", "save_freq", "test_freq", "log_val_generations"),
            *("profile_steps", "val_before_train", "val_only", "critic_warmup"),
        )
    ),
)
_PPO_ROWS = (*DATA, *MODEL, *SAMPLING, *TURNS, *SERVING, *REWARD, *TRAINER)

SERVER = KeyTable(
    (
        *_changed(_PPO_ROWS, _SERVER_CHANGES),
        Hint("critic.*", _NOTHING_TRAINED),
        Hint("distillation.*", _NOTHING_TRAINED),
    ),
    "ppo_trainer",
    adjust_generation,
)
"""Keys of `main_generation_server`: all keys of the PPO trainer, most of them ignored."""

_GENERATION_CHANGES: tuple[Row, ...] = (
    *_greedy(""),
    Mapped("rollout.temperature", "rollout.temperature", 1.0),
    Mapped("rollout.top_k", "rollout.top_k", 50, _top_k, "0 becomes -1: all tokens"),
    Mapped("rollout.top_p", "rollout.top_p", 0.7),
    Mapped(
        "rollout.prompt_length", "data.max_prompt_length", 1536, note="longer prompts are refused; see data.truncation"
    ),
    Mapped("rollout.response_length", "data.max_response_length", 512),
    Fixed("rollout.n", (1,), "data.n_samples sets the number of responses"),
)

GENERATION = KeyTable(
    (
        Mapped("data.path", "data.train_files", note="one file or a list"),
        Mapped("data.prompt_key", "data.prompt_key", "prompt"),
        Mapped("data.n_samples", "rollout.n", 5),
        _output("data.output_path"),
        Mapped("data.batch_size", "data.train_batch_size", 128, note="prompts per file of trajectories"),
        Mapped("data.trust_remote_code", "model.trust_remote_code"),
        Mapped("data.apply_chat_template_kwargs", "data.apply_chat_template_kwargs"),
        *_changed([row for row in MODEL if row.key in _OLD_MODEL], (), _IN_PPO),
        *_changed((*SAMPLING, *SERVING), _GENERATION_CHANGES, _IN_PPO),
        *(row for row in REWARD if row.key.startswith("custom_reward_function.")),
        Hint("actor.*", _NOTHING_TRAINED),
        *(row for row in TRAINER if row.key == "trainer.device"),
        *(
            Fixed(f"trainer.{key}", (1,), "set it to 1: one process generates", "one process generates")
            for key in ("nnodes", "n_gpus_per_node")
        ),
        *(Hint(f"{key}.*", "this command uses no Ray cluster") for key in ("ray_init", "ray_kwargs")),
        Hint("hydra.*", "trainer.default_local_dir sets the run's folder"),
    ),
    "generation",
    adjust_generation,
)
"""Keys of `main_generation`, from `generation.yaml` (older verl), which has no keys for agents and tools."""


def generation_table(keys: Sequence[str], base: str | None = None) -> KeyTable:
    """Choose the key table of a generation command from its keys and the name `base` of its YAML file.

    `SERVER` is chosen if `base` is the server's YAML file, or if one of the keys begins with `actor_rollout_ref.` or
    `data.train_files`. Otherwise, `GENERATION` is chosen.
    """
    if base == SERVER.base or any(key.startswith((_IN_PPO, "data.train_files")) for key in keys):
        return SERVER
    return GENERATION
