"""From the configuration to the critic of a run."""

from __future__ import annotations

from agentrl.algos.critic_loss import ValueLoss
from agentrl.backends.torch.backend import load_scalar_backend
from agentrl.config import RunConfig
from agentrl.config.actor import ActorConfig
from agentrl.trainer.critic import Critic
from agentrl.trainer.learner import updates_per_step

KEY = "critic.path"


def load_critic(config: RunConfig, total_steps: int) -> Critic:
    """The critic that `config` asks for. It is trained whole, whatever part of the policy is.

    Raises:
        ConfigError: its model cannot be used.
    """
    critic, actor = config.critic, config.actor
    mini_batch, epochs = critic.ppo_mini_batch_size or actor.ppo_mini_batch_size, critic.ppo_epochs or actor.ppo_epochs
    backend = load_scalar_backend(
        config.model.model_copy(update={"path": critic.path or config.model.path}),
        _as_actor(config),
        total_updates=total_steps * updates_per_step(config.data.train_batch_size, mini_batch, epochs),
        seed=config.trainer.seed,
        key=KEY,
    )
    return Critic(
        backend,
        ValueLoss(critic.cliprange_value, critic.loss_agg_mode, config.data.max_response_length),
        mini_batch_groups=mini_batch,
        epochs=epochs,
        seed=config.trainer.seed,
        warmup=config.trainer.critic_warmup,
    )


def _as_actor(config: RunConfig) -> ActorConfig:
    """How the critic is run and trained, in the terms of the section `actor`."""
    critic, actor = config.critic, config.actor
    return actor.model_copy(
        update={
            "optim": critic.optim,
            "grad_clip": critic.grad_clip,
            "ppo_max_token_len_per_gpu": critic.ppo_max_token_len_per_gpu or actor.ppo_max_token_len_per_gpu,
            "param_offload": critic.param_offload,
            "optimizer_offload": critic.optimizer_offload,
            "freeze_modules": (),
        }
    )
