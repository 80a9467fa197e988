"""Keys of verl's `main_eval`, which scores existing responses. They become keys and flags of `agentrl eval`."""

from __future__ import annotations

from agentrl.compat.verl.keys.data import expand_home
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped
from agentrl.compat.verl.keys.table import KeyTable

RESPONSES, RESPONSE_KEY = "--responses", "--response-key"
REWARD = "reward.custom_reward_function"

EVALUATION = KeyTable(
    (
        Mapped("data.path", RESPONSES, read=expand_home, note="a Parquet, JSON or JSONL file"),
        Mapped("data.prompt_key", "data.prompt_key", "prompt"),
        Mapped("data.response_key", RESPONSE_KEY, "responses", note="a text or a list of texts per row"),
        Fixed("data.data_source_key", ("data_source",), "name the column data_source"),
        Fixed(
            "data.reward_model_key", ("reward_model",), "name the column reward_model, with the key ground_truth in it"
        ),
        Hint("data.use_shm", "the file is read in place"),
        Mapped(
            "custom_reward_function.path",
            f"{REWARD}.path",
            read=expand_home,
            note="null: the row's data_source selects the reward function",
        ),
        Mapped("custom_reward_function.name", f"{REWARD}.name", "compute_score"),
        Mapped("custom_reward_function.reward_kwargs", f"{REWARD}.reward_kwargs"),
        Hint("ray_kwargs.*", "this command uses no Ray cluster"),
        Hint("hydra.*", "evaluation writes no Hydra folder"),
    ),
    "evaluation",
)
"""Keys of `main_eval`, from `evaluation.yaml`."""
