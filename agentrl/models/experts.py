"""Facts about a model's experts, from its configuration, without loading weights."""

from __future__ import annotations

from transformers import AutoConfig

from agentrl.config.model import ModelConfig
from agentrl.config.run import RoutedBy
from agentrl.errors import ConfigError, Kind
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.loading import check_model


def routed_shape(config: ModelConfig, routed_by: RoutedBy = "rollout") -> tuple[int, int]:
    """Return (layers, experts per token): the shape in which one token's experts are recorded.

    Dense layers are counted too. `routed_by`: configuration section with the key `routed_experts`, for error messages.

    Raises:
        ConfigError: there is no such model, or it is not a mixture of experts.
    """
    check_model(config)
    adapter = find_adapter(config.path)
    base = adapter.base if adapter else config.path
    model = AutoConfig.from_pretrained(base, trust_remote_code=config.trust_remote_code).get_text_config()
    if not (top_k := getattr(model, "num_experts_per_tok", None)):
        key = f"{routed_by}.routed_experts"
        text = f"`{key}` needs a mixture-of-experts model: '{base}' ({model.model_type}) has no experts"
        raise ConfigError.at(key, Kind.NOT_SUPPORTED, text)
    return model.num_hidden_layers, top_k
