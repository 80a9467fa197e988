"""Checkpoints: a Hugging Face model folder or a peft adapter folder, plus the trainer's state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from agentrl.backends.torch.freezing import check_same_frozen
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.adapters import adapter_parameters, has_adapter, read_adapter, write_adapter
from agentrl.models.loading import load_model, quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STATE_FILE = Path("trainer_state") / "state.pt"
REMEDY = "set another checkpoint in trainer.resume_from_path (resume_mode=path), or another default_local_dir"


def save_checkpoint(
    path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, state: dict[str, Any]
) -> None:
    """Write the checkpoint folder `path`, replacing an earlier one. If the model has an adapter, save only the adapter.

    The folder is written under a temporary name and renamed. So a folder at `path` is always complete, even after a
    kill.

    Raises:
        ConfigError: the checkpoint cannot be written, for example because the disk is full. An earlier folder is kept.
    """
    with new_folder(path) as aside:
        write_checkpoint(aside, model, tokenizer, saved_tensors(model), state)


def saved_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights that a checkpoint contains, not copied: all weights, or only the adapter."""
    return dict(adapter_parameters(model)) if has_adapter(model) else model.state_dict()


def write_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    weights: dict[str, Tensor],
    state: dict[str, Any],
) -> None:
    """Write a checkpoint into `folder`. Values that training changes come from `weights` and `state`, not `model`."""
    with filled(folder):
        with quiet_transformers():
            if has_adapter(model):
                write_adapter(model, weights, folder)
            else:
                model.save_pretrained(folder, state_dict=weights)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        torch.save(state, folder / STATE_FILE)


def copied(state: Any, known: dict[Hashable, Tensor] | None = None) -> Any:  # Any: nested values of a state_dict
    """Copy nested dictionaries and lists, with tensors in CPU memory. Identical views of a tensor share a copy."""
    known = {} if known is None else known
    if isinstance(state, Tensor):
        key = (state.untyped_storage().data_ptr(), state.storage_offset(), state.shape, state.stride(), state.dtype)
        if key not in known:
            known[key] = state.detach().to("cpu", copy=True)
        return known[key]
    if isinstance(state, dict):
        return {name: copied(value, known) for name, value in state.items()}
    return [copied(value, known) for value in state] if isinstance(state, list) else state


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary path, where the block creates a checkpoint folder; then rename this folder to `path`.

    Raises:
        ConfigError: the checkpoint cannot be written, for example because the disk is full. An earlier folder is kept.
    """
    aside, replaced = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.replaced")
    for leftover in (aside, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    with cleared_on_failure(aside, path):
        yield aside
    if path.exists():
        path.rename(replaced)  # a rename cannot replace a non-empty folder
    aside.rename(path)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Create `folder`, which the block fills with a checkpoint; then set the permissions of its weight files."""
    (folder / STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
    yield
    mode = (folder / STATE_FILE).stat().st_mode
    for file in folder.glob("*.safetensors"):  # safetensors makes its files readable only for the owner
        file.chmod(mode)


@contextmanager
def cleared_on_failure(aside: Path, path: Path) -> Iterator[None]:
    """If the block cannot write, remove the incomplete folder `aside` and raise a one-line error about `path`."""
    try:
        with write_errors(path):
            yield
    except ConfigError:
        shutil.rmtree(aside, ignore_errors=True)
        raise


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert disk errors to a one-line ConfigError."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):  # not an error of torch.save
            raise
        free_mib = shutil.disk_usage(path.parent).free / 2**20
        reason = f"{' '.join(str(error).split())}; {free_mib:.0f} MiB are free there"
        raise ConfigError.keyless(f"cannot write '{path}' ({reason}); the previous content is unchanged") from error


def read_state(path: Path) -> dict[str, Any]:
    """Read the trainer's state from the checkpoint `path` to the CPU, without running code from the file.

    Raises:
        ConfigError: the state is missing or corrupt.
    """
    file = path / STATE_FILE
    if not file.is_file():
        raise ConfigError.keyless(f"it is not a checkpoint: {STATE_FILE} is missing")
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if missing := {"optimizer", "random"} - state.keys():
            raise ValueError(f"it has no '{min(missing)}'")
    except Exception as error:  # invalid or truncated pickles raise many kinds of errors
        reason = " ".join(str(error).split()).partition(". ")[0][:150]  # omits torch's advice to trust the file
        raise ConfigError.keyless(f"{STATE_FILE} is truncated or not a file of agentrl ({reason})") from error
    return state


def check_parts(path: Path, model: PreTrainedModel, *, same_rest: bool) -> None:
    """Reject a checkpoint of the wrong kind (see `check_kind`), or whose frozen weights differ from the model's.

    Args:
        same_rest: whether the frozen weights are the same as when the checkpoint was saved.
    """
    check_kind(path, adapter=has_adapter(model))
    check_same_frozen(same_rest)


def check_kind(path: Path, *, adapter: bool) -> None:
    """Reject a checkpoint of complete weights if this run trains an adapter, and an adapter if it trains none."""
    kinds = ["whole weights", "a LoRA adapter"]
    if (saved := kinds[find_adapter(path) is not None]) != (own := kinds[adapter]):
        raise ConfigError.keyless(f"it holds {saved}, but this run trains {own}")


def read_weights(
    path: Path, model: PreTrainedModel, config: ModelConfig, load: Callable[..., PreTrainedModel] = load_model
) -> None:
    """Replace the model's weights by the checkpoint's. If the model has an adapter, replace only the adapter.

    Args:
        load: function that loads this kind of model.

    Raises:
        ConfigError: the weights are incomplete, or belong to another model.
    """
    if adapter := find_adapter(path):
        read_adapter(model, adapter)
    else:
        model.load_state_dict(saved_weights(path, model, config, load))


def saved_weights(
    path: Path, model: PreTrainedModel, config: ModelConfig, load: Callable[..., PreTrainedModel]
) -> dict[str, Tensor]:
    """Return the complete weights of a checkpoint, on the CPU, because the device may have no room for two copies.

    Raises:
        ConfigError: the weights are incomplete, or belong to another model.
    """
    plain = config.without_adapter(str(path))
    saved: dict[str, Tensor] = load(plain, torch.device("cpu"), key="checkpoint").state_dict()
    own, theirs = ({name: value.shape for name, value in each.items()} for each in (model.state_dict(), saved))
    for name in own.keys() | theirs.keys():
        if own.get(name) != theirs.get(name):
            raise ConfigError.keyless(f"its weights belong to another model, such as '{name}'")
    return saved


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors in a checkpoint's files into a ConfigError that names the checkpoint and a remedy."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError.keyless(f"cannot resume from '{path}': {error}; {REMEDY}") from error
    except (RuntimeError, KeyError, TypeError, ValueError) as error:  # other shapes or names than the model
        reason = " ".join(str(error).split())[:200]
        raise ConfigError.keyless(
            f"'{path}' is a checkpoint of another model or optimizer ({reason}): {REMEDY}"
        ) from error


def random_states() -> dict[str, Any]:
    """Return the states of torch's random generators."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def restore_random_states(states: dict[str, Any]) -> None:
    """Restore the result of `random_states`; states of devices that do not exist here are ignored."""
    torch.set_rng_state(states["cpu"])
    for number, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, number)
