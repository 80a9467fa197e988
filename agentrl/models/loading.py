"""Loads a Hugging Face causal language model and its tokenizer, with one-line errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from agentrl.config.model import Dtype, ModelConfig
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
TOKENIZER_FILES = ("*token*", "vocab*", "*.model")


def find_device(name: str, key: str) -> torch.device:
    """The device called `name`; auto is the CUDA GPU where there is one, else the CPU.

    Raises:
        ConfigError: no such device; names the configuration's `key`.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # an assertion is what a torch without CUDA answers
        raise ConfigError(f"{key} '{name}' cannot be used: {_first_line(error)}") from error


def load_model(
    config: ModelConfig, path: str | Path, device: torch.device, dtype: Dtype | None = None
) -> PreTrainedModel:
    """The model at `path`, on `device`, in evaluation mode: dropout would make the trained policy another one.

    Args:
        dtype: takes the place of `config.dtype`.

    Raises:
        ConfigError: there is no such model, it is incomplete, or it is no causal language model.
    """
    if not Path(path).is_dir() and not HUB_NAME.fullmatch(str(path)):
        raise ConfigError(f"model.path: there is no folder '{path}'")
    try:
        with quiet_transformers():
            _refuse_encoder_decoder(str(path), config)
            model, report = AutoModelForCausalLM.from_pretrained(
                str(path),
                dtype=dtype or config.dtype,
                attn_implementation=config.attn_implementation,
                trust_remote_code=config.trust_remote_code,
                output_loading_info=True,
            )
    except ConfigError:
        raise
    except Exception as error:  # a missing, cut or foreign file fails in a dozen ways; all are the folder's fault
        raise ConfigError(f"model.path: cannot load '{path}': {_first_line(error)}") from error
    if report["missing_keys"]:
        first = sorted(report["missing_keys"])[0]
        raise ConfigError(f"model.path: '{path}' lacks {len(report['missing_keys'])} weights, such as '{first}'")
    return model.eval().to(device)


def _refuse_encoder_decoder(path: str, config: ModelConfig) -> None:
    if AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code).is_encoder_decoder:
        raise ConfigError(f"model.path: '{path}' is an encoder-decoder; a causal language model is needed")


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer that is saved beside the weights; None where the model's folder brings none.

    Raises:
        ConfigError: `tokenizer_path` was given and has none.
    """
    source = config.tokenizer_path or config.path
    try:
        if Path(source).is_dir() and not any(path for glob in TOKENIZER_FILES for path in Path(source).glob(glob)):
            raise OSError("there are no tokenizer files")  # transformers would make up an empty tokenizer
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError) as error:
        if config.tokenizer_path is None:
            return None
        raise ConfigError(f"model.tokenizer_path: cannot load '{source}': {_first_line(error)}") from error
    if config.chat_template is not None:
        tokenizer.chat_template = config.chat_template.read_text()
    return tokenizer


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and reports while a model is read or written: what goes wrong is raised."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
