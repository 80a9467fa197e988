"""Checkpoints: a Hugging Face model folder, or peft's of an adapter, with the trainer's state beside the weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.adapters import has_adapter, read_adapter, write_adapter
from agentrl.models.loading import load_model, quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STATE_FILE = Path("trainer_state") / "state.pt"
REMEDY = "name another in trainer.resume_from_path (resume_mode=path), or begin anew in another default_local_dir"


def save_checkpoint(
    path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, state: dict[str, Any]
) -> None:
    """Write the folder `path`, taking the place of an earlier one. Of a model with an adapter, the adapter alone.

    It is written aside and renamed, so whatever stands under `path` is whole, also after a kill.

    Raises:
        ConfigError: it cannot be written, as on a full disk; what stood under `path` still does.
    """
    aside, replaced = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.replaced")
    for leftover in (aside, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    with cleared_on_failure(aside, path):
        (aside / STATE_FILE).parent.mkdir(parents=True)
        with quiet_transformers():
            write_adapter(model, aside) if has_adapter(model) else model.save_pretrained(aside)
        if tokenizer is not None:
            tokenizer.save_pretrained(aside)
        torch.save(state, aside / STATE_FILE)
    if path.exists():
        path.rename(replaced)  # a folder that is not empty cannot be renamed over
    aside.rename(path)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def cleared_on_failure(aside: Path, path: Path) -> Iterator[None]:
    """Remove what could not be written whole, and say why in one line."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):  # torch.save's writer names itself
            raise
        free_mib = shutil.disk_usage(aside.parent).free / 2**20
        shutil.rmtree(aside, ignore_errors=True)
        reason = f"{' '.join(str(error).split())}; {free_mib:.0f} MiB are left there"
        raise ConfigError(f"cannot write '{path}' ({reason}); what stood there before is untouched") from error


def read_state(path: Path) -> dict[str, Any]:
    """The trainer's state in the checkpoint `path`, on the CPU, without running code from it.

    Raises:
        ConfigError: there is none, or it is torn.
    """
    file = path / STATE_FILE
    if not file.is_file():
        raise ConfigError(f"it is no checkpoint: there is no {STATE_FILE}")
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if missing := {"optimizer", "random"} - state.keys():
            raise ValueError(f"it has no '{min(missing)}'")
    except Exception as error:  # what is no pickle, or half of one, fails in a dozen ways
        reason = " ".join(str(error).split()).partition(". ")[0][:150]  # torch goes on with advice to trust the file
        raise ConfigError(f"{STATE_FILE} is cut off or foreign ({reason})") from error
    return state


def check_parts(path: Path, model: PreTrainedModel, *, same_rest: bool) -> None:
    """Refuse a checkpoint of other parts than the model trains.

    Args:
        same_rest: whether what was not trained then is what is not trained now.
    """
    kinds = ["whole weights", "a LoRA adapter"]
    if (saved := kinds[find_adapter(path) is not None]) != (own := kinds[has_adapter(model)]):
        raise ConfigError(f"it holds {saved}, and this run trains {own}")
    if not same_rest:
        raise ConfigError("other weights were frozen: model.path, model.dtype or actor.freeze_modules has changed")


def read_weights(
    path: Path, model: PreTrainedModel, config: ModelConfig, load: Callable[..., PreTrainedModel] = load_model
) -> None:
    """Replace the model's weights by the checkpoint's; of a model with an adapter, the adapter's alone.

    Args:
        load: what loads a model of its kind.

    Raises:
        ConfigError: they are not whole, or another model's.
    """
    if adapter := find_adapter(path):
        read_adapter(model, adapter)
        return
    plain = config.model_copy(update={"path": str(path), "lora_rank": 0, "lora_adapter_path": None})
    saved = load(plain, torch.device("cpu"), key="checkpoint")  # the device need not hold it twice
    own, theirs = ({name: value.shape for name, value in each.state_dict().items()} for each in (model, saved))
    for name in own.keys() | theirs.keys():
        if own.get(name) != theirs.get(name):
            raise ConfigError(f"its weights are another model's, such as '{name}'")
    model.load_state_dict(saved.state_dict())


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say of whatever is wrong with a checkpoint's files that they are the checkpoint's, and what to do."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"cannot go on from '{path}': {error}; {REMEDY}") from error
    except (RuntimeError, KeyError, TypeError, ValueError) as error:  # other shapes or names than this model's
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"'{path}' is a checkpoint of another model or optimizer ({reason}): {REMEDY}") from error


def random_states() -> dict[str, Any]:
    """The states of torch's generators."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def restore_random_states(states: dict[str, Any]) -> None:
    """Take up `random_states`; generators of devices that are not here are left out."""
    torch.set_rng_state(states["cpu"])
    for number, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, number)
