"""`agentrl export`: write a checkpoint as a self-contained Hugging Face folder; a LoRA adapter is merged."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.folder import check_folder
from agentrl.run_folder.checkpoints import newest


def export(options: argparse.Namespace) -> None:
    """Write the model of `options.checkpoint` into the new folder `options.folder`.

    Raises:
        ConfigError: the checkpoint is incomplete, or the folder is not empty or cannot be written.
    """
    folder: Path = options.folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError.keyless(f"'{folder}' is not empty: give a new folder")
    checkpoint = _checkpoint(options.checkpoint)
    merged = find_adapter(checkpoint) is not None
    if not merged:
        _check(checkpoint, options.dtype)
    from agentrl.backends.torch.checkpoint import cleared_on_failure  # imports torch and transformers

    partial = folder.absolute().with_name(f".{folder.absolute().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    _make(partial.parent)
    with cleared_on_failure(partial, folder):
        if merged:
            note = _merge(checkpoint, partial, options.dtype or "float32", options.trust_remote_code)
        else:
            note = _copy(checkpoint, partial)
    if folder.exists():
        folder.rmdir()
    partial.rename(folder)
    print(f"exported {checkpoint} to {folder}{note}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError.keyless(f"cannot create the folder '{folder}': {error.strerror}") from error


def _checkpoint(path: Path) -> Path:
    """Return the newest checkpoint if `path` is a run folder, else `path` itself."""
    if not path.is_dir():
        raise ConfigError.keyless(f"there is no folder '{path}'")
    return newest(path) or path.resolve()


def _check(checkpoint: Path, dtype: str | None) -> None:
    """Refuse a checkpoint that cannot be copied unchanged."""
    if dtype:
        raise ConfigError.keyless(f"'{checkpoint}' has full weights, which are copied unchanged: remove --dtype")
    check_folder(checkpoint, "checkpoint")
    if links := [path for path in checkpoint.rglob("*") if path.is_symlink()]:
        raise ConfigError.keyless(f"'{links[0]}' is a link, and export copies no links: replace it with the file")


def _copy(checkpoint: Path, folder: Path) -> str:
    from agentrl.backends.torch.checkpoint import STATE_FILE as BACKEND_STATE
    from agentrl.run_folder.checkpoints import STATE_FILE as RUN_STATE
    from agentrl.run_folder.manifest import MANIFEST_FILE

    ignored = shutil.ignore_patterns(BACKEND_STATE.parts[0], RUN_STATE, MANIFEST_FILE)
    shutil.copytree(checkpoint, folder, ignore=ignored)
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
    hint = "--dtype bfloat16 halves the size but rounds" if dtype == "float32" else "the adapter's update is rounded"
    return f" in {dtype} ({hint})"
