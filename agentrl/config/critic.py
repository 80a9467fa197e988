"""`critic.*`: the value model of PPO."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from agentrl.config.actor import OptimConfig
from agentrl.config.base import Section
from agentrl.config.presets import Aggregation


class CriticConfig(Section):
    """The value model; loaded only where the advantage estimator needs values. Null: as the actor has it."""

    path: str | None = None
    """Folder of its model; null: the policy's own body. Its value head is new unless the folder brings one."""
    optim: OptimConfig = OptimConfig(lr=1e-5)
    """Its optimizer."""
    ppo_mini_batch_size: PositiveInt | None = None
    """Tasks (groups) an update."""
    ppo_epochs: PositiveInt | None = None
    """Passes over a step's samples."""
    ppo_max_token_len_per_gpu: PositiveInt | None = None
    """Token budget of a micro-batch."""
    grad_clip: PositiveFloat = 1.0
    """Largest norm of the gradient; longer ones are scaled down to it."""
    cliprange_value: NonNegativeFloat = 0.5
    """How far a value may move from the one before the step in the loss."""
    loss_agg_mode: Aggregation = "token-mean"
    """How the loss of tokens becomes one number."""
    param_offload: bool = False
    """Keep its weights in CPU memory except while it trains or scores; on a CPU nothing changes."""
    optimizer_offload: bool = False
    """Keep the optimizer's averages in CPU memory except while it updates; on a CPU nothing changes."""
