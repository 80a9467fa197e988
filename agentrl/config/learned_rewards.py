"""`reward.reward_model`, `algorithm.reward_training`: reward models, how they score and how they are trained."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.config.actor import OptimConfig
from agentrl.config.base import Section
from agentrl.config.model import Dtype

Activation = Literal["none", "sigmoid", "verdict"]


class OnlineRewardConfig(Section):
    """A reward model that learns, as the policy does, from what a rule says of fresh rollouts."""

    outcome: str
    """The component of reward.components that says what a rollout achieved, from 0 to 1; weight 0: it only teaches."""
    every: PositiveInt = 1
    """Steps of the policy between two rounds of learning."""
    warmup_steps: NonNegativeInt = 5
    """First steps in which the outcome itself is the score, and the reward model only learns."""
    buffer: PositiveInt = 512
    """Latest rollouts that a round learns from."""
    batch_size: PositiveInt = 64
    """Rollouts an update."""
    epochs: PositiveInt = 1
    """Passes over the buffer in a round."""
    optim: OptimConfig = OptimConfig(lr=1e-5)
    """Its optimizer."""
    grad_clip: PositiveFloat = 1.0
    """Largest norm of the gradient; longer ones are scaled down to it."""


class RewardModelConfig(Section):
    """A model for sequence classification with one label, whose number for a conversation is its reward."""

    path: str | None = None
    """Its folder, or its name on the hub; with `online`, null begins with the policy's body and a new head."""
    device: str = "auto"
    """Device it runs on: auto takes a CUDA GPU where there is one."""
    dtype: Dtype = "auto"
    """Number type of its weights; auto takes the checkpoint's."""
    trust_remote_code: bool = False
    """Whether code that ships with it may run."""
    input: Literal["chat", "turns", "tokens"] | None = None
    """chat: the messages, by the chat template of its own tokenizer, tools left out. turns: the same turn by turn, up
    to the end of the last one, as models trained here read them. tokens: the policy's own tokens as they were sampled,
    for a model with its tokenizer. null: tokens where `path` is null, turns for a checkpoint of agentrl, else chat."""
    activation: Activation | None = None
    """none: its number is the reward. sigmoid: a probability. verdict: 1 where that is 0.5 or more, else 0, so that
    siblings it takes for equally good are. null: verdict with `online`, else none."""
    max_length: PositiveInt | None = None
    """Longest conversation in its tokens; null: as many as its positions allow."""
    too_long: Literal["error", "leave_out"] = "error"
    """What a longer one is: an error that ends the run, or a rollout that takes no part (infra_failed). None is cut."""
    batch_tokens: PositiveInt = 16384
    """Tokens that are scored together, padding included."""
    batch_size: PositiveInt | None = None
    """Conversations that are scored together at most; null: no limit, and 1 under rollout.deterministic."""
    online: OnlineRewardConfig | None = None
    """Train it beside the policy; null: it stays as it is."""

    @property
    def activated(self) -> Activation:
        """What becomes of its number."""
        return self.activation or ("verdict" if self.online else "none")


class RewardTrainingConfig(Section):
    """How algorithm.name=reward_pairs, reward_outcomes and reward_steps train a reward model."""

    center_rewards_coefficient: NonNegativeFloat = 0.0
    """reward_pairs: weight of (chosen + rejected)^2, which keeps scores around 0."""
    outcome: str = "score"
    """reward_outcomes: the reward, by its name, that stored rollouts are labelled with."""
    step: str | None = None
    """reward_steps: the turn reward, by its name, that turns of stored rollouts are labelled with; null: their sum."""
    loss: Literal["bce", "mse"] = "bce"
    """reward_outcomes, reward_steps: bce takes labels from 0 to 1 as probabilities; mse any number."""
    label_key: str = "label"
    """reward_outcomes: the column of the label."""
    labels_key: str = "labels"
    """reward_steps: the column of the labels, one an assistant turn; null where a turn has none."""
