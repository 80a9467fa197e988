"""`agentrl export`: a checkpoint as a Hugging Face folder that stands alone, with a LoRA adapter merged in."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from agentrl.errors import ConfigError


def export(options: argparse.Namespace) -> None:
    """Write the model of `options.checkpoint` into the new folder `options.folder`.

    Raises:
        ConfigError: the checkpoint is not whole, the folder is not empty, or it cannot be written.
    """
    folder: Path = options.folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"'{folder}' is not an empty folder: name a new one")
    checkpoint = _checkpoint(options.checkpoint)
    from agentrl.backends.torch.checkpoint import cleared_on_failure  # torch and transformers come with it

    aside = folder.absolute().with_name(f".{folder.absolute().name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    _make(aside.parent)
    with cleared_on_failure(aside, folder):
        told = _write(checkpoint, aside, options)
    if folder.exists():
        folder.rmdir()
    aside.rename(folder)
    print(f"exported {checkpoint} to {folder}{told}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder '{folder}': {error.strerror}") from error


def _checkpoint(path: Path) -> Path:
    """The folder itself, or the checkpoint that the run in that folder would go on from."""
    if not path.is_dir():
        raise ConfigError(f"there is no folder '{path}'")
    from agentrl.trainer.checkpoint import newest  # torch comes with it

    return newest(path) or path.resolve()


def _write(checkpoint: Path, folder: Path, options: argparse.Namespace) -> str:
    """Write the model; what there is to say of how."""
    from agentrl.backends.torch.checkpoint import STATE_FILE as BACKEND_STATE
    from agentrl.models.adapter_folder import find_adapter
    from agentrl.models.folder import check_folder
    from agentrl.trainer.checkpoint import STATE_FILE as RUN_STATE

    if find_adapter(checkpoint):
        return _merge(checkpoint, folder, options.dtype or "float32", options.trust_remote_code)
    if options.dtype:
        raise ConfigError(f"'{checkpoint}' holds whole weights, which are copied as they are: leave out --dtype")
    check_folder(checkpoint, "checkpoint")
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns(BACKEND_STATE.parts[0], RUN_STATE))
    return ""


def _merge(checkpoint: Path, folder: Path, dtype: str, trust_remote_code: bool) -> str:
    import torch

    from agentrl.config.model import ModelConfig
    from agentrl.models.loading import load_tokenizer, quiet_transformers
    from agentrl.models.merging import merge_adapter

    config = ModelConfig(path=str(checkpoint), trust_remote_code=trust_remote_code)
    model, tokenizer = merge_adapter(config, getattr(torch, dtype)), load_tokenizer(config)
    with quiet_transformers():
        model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    hint = "--dtype bfloat16 halves it, but rounds" if dtype == "float32" else "which rounds the adapter's update"
    return f" in {dtype} ({hint})"
