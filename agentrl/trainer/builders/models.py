"""Builds the critic and the reference model of a run from the configuration."""

from __future__ import annotations

from agentrl.algos.losses.value import ValueLoss
from agentrl.backends.base import Backend, ModelRequest, load_backend
from agentrl.config import RunConfig
from agentrl.config.actor import ActorConfig, CriticConfig, RefConfig
from agentrl.trainer.learner import updates_per_step
from agentrl.trainer.models.critic import Critic

KEY = "critic.path"


def load_critic(config: RunConfig, total_steps: int) -> Critic:
    """Build the critic. All its weights are trained, even if only some of the policy's weights are.

    Raises:
        ConfigError: the critic's model cannot be used.
    """
    critic, actor = config.critic, config.actor
    mini_batch, epochs = critic.ppo_mini_batch_size or actor.ppo_mini_batch_size, critic.ppo_epochs or actor.ppo_epochs
    request = ModelRequest(
        config.model.model_copy(update={"path": critic.path or config.model.path}),
        _as_actor(config),
        total_updates=total_steps * updates_per_step(config.data.train_batch_size, mini_batch, epochs),
        value_head=True,
        key=KEY,
    )
    return Critic(
        load_backend(config, request),
        ValueLoss(critic.cliprange_value, critic.loss_agg_mode, config.data.max_response_length),
        mini_batch_groups=mini_batch,
        epochs=epochs,
        seed=config.trainer.seed,
    )


def _as_actor(config: RunConfig) -> ActorConfig:
    """Return the critic's settings as an `actor` section."""
    critic, actor = config.critic, config.actor
    return actor.model_copy(
        update={
            "optim": critic.optim,
            "grad_clip": critic.grad_clip,
            "ppo_max_token_len_per_gpu": critic.ppo_max_token_len_per_gpu or actor.ppo_max_token_len_per_gpu,
            **_own_size(critic),
            "param_offload": critic.param_offload,
            "optimizer_offload": critic.optimizer_offload,
            "fsdp_size": critic.fsdp_size,
            "freeze_modules": (),
        }
    )


def _own_size(section: RefConfig | CriticConfig) -> dict[str, int]:
    size = section.ulysses_sequence_parallel_size
    return {} if size is None else {"ulysses_sequence_parallel_size": size}


def load_reference(config: RunConfig) -> Backend:
    """Load the model of `ref.path`; if `ref.path` is not set, load the initial policy without its LoRA adapter.

    Raises:
        ConfigError: the reference model cannot be used.
    """
    path, key = (config.ref.path, "ref.path") if config.ref.path else (config.model.path, "model.path")
    model = config.model.without_adapter(path)
    own = {"param_offload": config.ref.param_offload, **_own_size(config.ref)}
    actor = config.actor.model_copy(update=own)
    return load_backend(config, ModelRequest(model, actor, trainable=False, key=key))
