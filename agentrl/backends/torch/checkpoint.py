"""Checkpoints: a Hugging Face model folder with the trainer's state beside the weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentrl.errors import ConfigError
from agentrl.models.loading import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STATE_FILE = Path("trainer_state") / "state.pt"


def save_checkpoint(
    path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, state: dict[str, Any]
) -> None:
    """Write the folder `path`, taking the place of an earlier one.

    It is written aside and renamed, so whatever stands under `path` is whole, also after a kill.
    """
    aside, replaced = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.replaced")
    for leftover in (aside, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    (aside / STATE_FILE).parent.mkdir(parents=True)
    with quiet_transformers():
        model.save_pretrained(aside)
    if tokenizer is not None:
        tokenizer.save_pretrained(aside)
    torch.save(state, aside / STATE_FILE)
    if path.exists():
        path.rename(replaced)  # a folder that is not empty cannot be renamed over
    aside.rename(path)
    shutil.rmtree(replaced, ignore_errors=True)


def read_state(path: Path) -> dict[str, Any]:
    """The trainer's state in the checkpoint `path`, on the CPU, without running code from it.

    Raises:
        ConfigError: there is none.
    """
    if not (path / STATE_FILE).is_file():
        raise ConfigError(f"'{path}' is no checkpoint to go on from: there is no {STATE_FILE}")
    state: dict[str, Any] = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    return state


def random_states() -> dict[str, Any]:
    """The states of torch's generators."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def restore_random_states(states: dict[str, Any]) -> None:
    """Take up `random_states`; generators of devices that are not here are left out."""
    torch.set_rng_state(states["cpu"])
    for number, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, number)
