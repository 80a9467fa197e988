"""Load a Hugging Face causal language model and its tokenizer, with one-line errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from agentrl.config.model import Dtype, ModelConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.adapter_folder import ADAPTER_CONFIG, MOVED, Adapter, find_adapter
from agentrl.models.adapters import add_new_adapter, add_saved_adapter, check_peft, has_adapter
from agentrl.models.finite import check_finite
from agentrl.models.folder import check_folder, invalid_json, is_folder
from agentrl.utils.hub import check_hub

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


TOKENIZER_FILES = ("*token*", "vocab*", "*.model")


def max_positions(config: PretrainedConfig) -> int | None:
    """Return the maximum number of tokens in a sequence; None if the model has no limit."""
    positions: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions


def find_device(name: str, key: str) -> torch.device:
    """Return the device called `name`; auto is the CUDA GPU if there is one, else the CPU.

    Raises:
        ConfigError: there is no such device; the message names the configuration key `key`.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
        raise ConfigError.at(key, Kind.WRONG_VALUE, f"{key} '{name}' cannot be used: {_first_line(error)}") from error


def load_model(
    config: ModelConfig, device: torch.device, dtype: Dtype | None = None, key: str = "model.path"
) -> PreTrainedModel:
    """Load the model at `config.path` to `device`, in evaluation mode, because dropout would change the trained policy.

    If `config` asks for a LoRA adapter, or `config.path` is an adapter, only the adapter requires gradients.

    Args:
        dtype: overrides `config.dtype`.
        key: the configuration key that contains the model's path, for error messages.

    Raises:
        ConfigError: there is no such model, it is incomplete, it is not a causal language model, an adapter does not
            fit it, or a weight is not finite.
    """
    adapter = adapter_of(config, key)
    if adapter or config.lora_rank:
        check_peft()
    base = config.path
    if adapter and config.lora_adapter_path is None:
        base, key = adapter.base, f"base of '{config.path}' (if it has moved, {MOVED})"
    model = _load_base(base, config, dtype or config.dtype, key)
    if adapter:
        add_saved_adapter(model, adapter, config, base)
    elif config.lora_rank:
        add_new_adapter(model, config, base)
    model.eval().to(device)
    check_finite(model)
    return model


def adapter_of(config: ModelConfig, key: str) -> Adapter | None:
    """Return the saved adapter that `config` names; None if it names none.

    Raises:
        ConfigError: the folder `config.lora_adapter_path` has no adapter, or two adapters are configured.
    """
    own = find_adapter(config.path)
    if config.lora_adapter_path is None:
        return own
    if own:
        raise ConfigError.at(
            "model.lora_adapter_path",
            Kind.CONFLICT,
            f"{key} '{config.path}' is an adapter itself: remove model.lora_adapter_path",
        )
    if found := find_adapter(config.lora_adapter_path):
        return found
    raise ConfigError.at(
        "model.lora_adapter_path",
        Kind.NOT_FOUND,
        f"model.lora_adapter_path: there is no {ADAPTER_CONFIG} in '{config.lora_adapter_path}'",
    )


def _load_base(path: str, config: ModelConfig, dtype: Dtype, key: str) -> PreTrainedModel:
    model, missing = read_model(AutoModelForCausalLM, path, config, dtype, key)
    if has_adapter(model):  # transformers itself loads adapters from the hub; the base would then be trained too
        raise ConfigError.at(
            key, Kind.NOT_SUPPORTED, f"{key}: '{path}' is an adapter on the hub: download it and set its folder"
        )
    check_complete(path, missing, key)
    return model


def read_model(
    auto_class: type, path: str, config: ModelConfig, dtype: Dtype, key: str, **options: object
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model at `path`, loaded with a transformers auto class, and the names of its missing weights.

    Args:
        options: further options of `from_pretrained`.

    Raises:
        ConfigError: there is no such model, it is corrupt, or it does not fit `auto_class`.
    """
    _check_path(path, key)
    try:
        with quiet_transformers():
            _refuse_encoder_decoder(path, config, key)
            model, report = auto_class.from_pretrained(  # type: ignore[attr-defined]  # no common base class
                path,
                dtype=dtype,
                attn_implementation=config.attn_implementation,
                trust_remote_code=config.trust_remote_code,
                output_loading_info=True,
                **options,
            )
    except ConfigError:
        raise
    except Exception as error:  # missing, truncated or foreign files raise many kinds of errors
        raise ConfigError.at(key, Kind.WRONG_VALUE, f"{key}: cannot load '{path}': {_first_line(error)}") from error
    return model, sorted(report["missing_keys"])


def check_complete(path: str, missing: Sequence[str], key: str) -> None:
    """Reject a model with missing weights.

    Raises:
        ConfigError: a weight is missing; the message names the first one.
    """
    if missing:
        raise ConfigError.at(
            key, Kind.WRONG_VALUE, f"{key}: '{path}' lacks {len(missing)} weights, such as '{missing[0]}'"
        )


def check_model(config: ModelConfig) -> None:
    """Reject an incomplete model folder or an unknown hub name, before any expensive work.

    Raises:
        ConfigError: a file is missing or truncated, or the hub has no such model or cannot be reached.
    """
    adapter = find_adapter(config.path)
    _check_path(adapter.base if adapter else config.path, "model.path")


def _check_path(path: str, key: str) -> None:
    if is_folder(path):
        check_folder(Path(path), key)
    else:
        check_hub(path, key)


def _refuse_encoder_decoder(path: str, config: ModelConfig, key: str) -> None:
    if AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code).is_encoder_decoder:
        raise ConfigError.at(
            key, Kind.NOT_SUPPORTED, f"{key}: '{path}' is an encoder-decoder; a causal language model is needed"
        )


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer from `tokenizer_source`; None if there is no tokenizer beside the weights.

    Raises:
        ConfigError: the folder is missing, the hub has no such model or cannot be reached, or the tokenizer or the
            configured chat template cannot be read.
    """
    key = "model.path" if config.tokenizer_path is None else "model.tokenizer_path"
    source = tokenizer_source(config)
    if not is_folder(source):
        check_hub(source, key)
    elif not Path(source).is_dir():
        raise ConfigError.at(key, Kind.NOT_FOUND, f"{key}: there is no folder '{source}'")
    elif not _has_tokenizer(source):  # transformers would create an empty tokenizer
        if config.tokenizer_path is None:
            return None
        raise ConfigError.at(key, Kind.NOT_FOUND, f"{key}: cannot load '{source}': there are no tokenizer files")
    tokenizer = _read_tokenizer(source, config, key)
    if config.chat_template is not None:
        tokenizer.chat_template = _template(config.chat_template)
    return tokenizer


def _read_tokenizer(source: str, config: ModelConfig, key: str) -> PreTrainedTokenizerBase:
    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(source, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # truncated or foreign files raise many kinds of errors, even a plain Exception
        reason = invalid_json(Path(source)) or f"the tokenizer of '{source}' cannot be read: {_first_line(error)}"
        raise ConfigError.at(key, Kind.WRONG_VALUE, f"{key}: {reason}") from error


def _template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError.at(
            "model.chat_template", Kind.NOT_FOUND, f"model.chat_template: cannot read '{file}': {_first_line(error)}"
        ) from error


def tokenizer_source(config: ModelConfig) -> str:
    """Return the folder or hub name from which `load_tokenizer` reads.

    This is `tokenizer_path` if it is set. Otherwise, it is the model's path, or the base model of an adapter that was
    saved without a tokenizer.
    """
    if config.tokenizer_path is not None:
        return config.tokenizer_path
    adapter = find_adapter(config.path)
    return adapter.base if adapter and not _has_tokenizer(config.path) else config.path


def _has_tokenizer(folder: str) -> bool:
    return any(path for glob in TOKENIZER_FILES for path in Path(folder).glob(glob))


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide progress bars and reports while a model is read or written. Errors are still raised."""
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
