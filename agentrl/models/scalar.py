"""Load a model that outputs one number per token: a critic or a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from agentrl.config.model import Dtype, ModelConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.finite import check_finite
from agentrl.models.loading import check_complete, quiet_transformers, read_model

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_CLASSES = {
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
}
HEAD = "score"
"""Name of the linear head in transformers' classification models."""


def load_scalar_model(
    config: ModelConfig,
    device: torch.device,
    dtype: Dtype | None = None,
    key: str = "model.path",
    *,
    new_head: bool = True,
) -> PreTrainedModel:
    """Load the model at `config.path` with a head of one label, to `device`, in evaluation mode.

    A checkpoint for sequence or token classification already has a head. Of a causal language model, only the body is
    loaded, into transformers' class for sequence classification. This class adds a new head. The new head's weights are
    0, so that every value starts at 0 (Huang et al. 2024, arXiv:2403.17031, on the code of Ziegler et al. 2019). LoRA
    options of `config` apply to policies only: this model is loaded without an adapter.

    Args:
        dtype: overrides `config.dtype`.
        key: the configuration key that contains the model's path, for error messages.
        new_head: whether a language model without a trained head is accepted.

    Raises:
        ConfigError: there is no such model; it is an adapter, incomplete, or has several labels; transformers has no
            classification class for it; or a weight is not finite.
    """
    kind = scalar_kind(config, key)
    model, missing = read_model(
        _CLASSES[kind or "ForSequenceClassification"], config.path, config, dtype or config.dtype, key, num_labels=1
    )
    head = getattr(model, HEAD, None)
    if not isinstance(head, nn.Linear) or model.base_model is model:
        raise ConfigError.at(
            key, Kind.NOT_SUPPORTED, f"{key}: {type(model).__name__} has no linear layer '{HEAD}' after its body"
        )
    new = [] if kind or not new_head else [name for name in missing if name.startswith(f"{HEAD}.")]
    check_complete(config.path, [name for name in missing if name not in new], key)
    if new:
        nn.init.zeros_(head.weight)
    model.eval().to(device)
    check_finite(model)
    return model


def name_scalar_class(config: PretrainedConfig, kind: str | None) -> None:
    """Set the number of labels to 1, and transformers' class name, in the configuration of a model with a scalar head.

    Args:
        kind: see `scalar_kind`.
    """
    config.num_labels = 1
    if kind is None:
        config.architectures = [MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)].__name__]


def scalars_of(head: nn.Linear, states: Tensor) -> Tensor:
    """Apply the head to states, [..., H], and return scalars, [...].

    The head is computed in float32 or higher precision for any dtype of the body, because bfloat16 has only two or
    three digits.
    """
    dtype = torch.promote_types(states.dtype, torch.float32)
    weight, bias = head.weight.to(dtype), head.bias
    with torch.autocast(states.device.type, enabled=False):
        return linear(states.to(dtype), weight, bias if bias is None else bias.to(dtype))[..., 0]


@torch.no_grad()
def last_scalars(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> list[float]:
    """Return the scalar at the last token of each sequence, [B], computed in one batch that is padded on the right.

    Transformers' class returns the same values, except for sequences that end in the padding token. For these, the
    class returns the scalar at an earlier token.
    """
    lengths = torch.tensor([len(each) for each in sequences])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    token_ids = torch.zeros(mask.shape, dtype=torch.long)
    token_ids[mask] = torch.tensor([*chain.from_iterable(sequences)])
    device = model.device
    states = model.base_model(input_ids=token_ids.to(device), attention_mask=mask.long().to(device), use_cache=False)[0]
    ends = states[torch.arange(len(sequences), device=device), (lengths - 1).to(device)]
    scalars: list[float] = scalars_of(getattr(model, HEAD), ends).tolist()
    return scalars


def scalar_kind(config: ModelConfig, key: str) -> str | None:
    """Return the class name suffix of a saved classification checkpoint; None for other checkpoints.

    Raises:
        ConfigError: the checkpoint is an adapter or has several labels, or transformers has no classification class.
    """
    if adapter := find_adapter(config.path):
        raise ConfigError.at(
            key,
            Kind.NOT_SUPPORTED,
            f"{key}: '{config.path}' is a LoRA adapter: name a full model, such as '{adapter.base}'",
        )
    try:
        with quiet_transformers():
            saved = AutoConfig.from_pretrained(config.path, trust_remote_code=config.trust_remote_code)
    except Exception:  # `read_model` reports this error
        return None
    (name,) = (saved.architectures or [""])[:1]
    kind = next((kind for kind in _CLASSES if name.endswith(kind)), None)
    if not (kind or hasattr(saved, "auto_map") or type(saved) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING):
        raise ConfigError.at(
            key,
            Kind.NOT_SUPPORTED,
            f"{key}: transformers has no sequence classification of '{saved.model_type}' models",
        )
    if kind and saved.num_labels != 1:
        raise ConfigError.at(
            key,
            Kind.WRONG_VALUE,
            f"{key}: '{config.path}' has {saved.num_labels} labels, but a value or reward model needs one",
        )
    return kind
