"""From the configuration to the reference policy of a run, where it is a model of its own."""

from __future__ import annotations

from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config import RunConfig


def load_reference(config: RunConfig) -> TorchBackend:
    """The model of `ref.path`, or else the policy as the run begins with it, without its LoRA adapter.

    Raises:
        ConfigError: its model cannot be used.
    """
    path, key = (config.ref.path, "ref.path") if config.ref.path else (config.model.path, "model.path")
    model = config.model.model_copy(update={"path": path, "lora_rank": 0, "lora_adapter_path": None})
    actor = config.actor.model_copy(update={"param_offload": config.ref.param_offload})
    return load_torch_backend(model, actor, total_updates=1, seed=config.trainer.seed, trainable=False, key=key)
