"""`reward.reward_model`, `algorithm.reward_training`: how reward models score and how they are trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.config.actor import HeadOptimConfig
from agentrl.config.base import Section
from agentrl.config.model import Dtype
from agentrl.config.uses import Folder, Text, code

Activation = Literal["none", "sigmoid", "verdict"]


class OnlineRewardConfig(Section):
    """A reward model trained during the run on new rollouts, labelled by another reward component."""

    outcome: Text
    """Component of reward.components whose value, from 0 to 1, labels the rollouts. With weight 0, the
    component does not change the score."""
    every: PositiveInt = 1
    """Train the reward model every N steps of the policy."""
    warmup_steps: NonNegativeInt = 5
    """Number of first steps in which the reward model is trained, but does not score. In these steps, the score is the
    value of the component that `outcome` names."""
    buffer: PositiveInt = 512
    """Each training round uses this number of the newest rollouts."""
    batch_size: PositiveInt = 64
    """Rollouts per update."""
    epochs: PositiveInt = 1
    """Passes over the `buffer` newest rollouts per training round."""
    optim: HeadOptimConfig = HeadOptimConfig()
    """Optimizer of the reward model."""
    grad_clip: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are scaled down."""


class RewardModelConfig(Section):
    """A sequence classification model with one label, whose output for a conversation is the reward."""

    path: Folder | None = None
    """Model folder or hub name. null, only with `online`: the policy's model with a new head."""
    device: Text = "auto"
    """Device of the reward model; auto: a CUDA GPU if available."""
    dtype: Dtype = "auto"
    """Data type of the weights; auto: that of the checkpoint."""
    trust_remote_code: Annotated[bool, code()] = False
    """Allow code that ships with the model to run."""
    input: Literal["chat", "turns", "tokens"] | None = None
    """What the model reads. chat: the messages without tool schemas, in the model's own chat template. turns: the same
    messages, rendered turn by turn as in agentrl's training. tokens: the tokens of the rollout, for a model with the
    policy's tokenizer. null: tokens if `path` is null, turns for a checkpoint of agentrl, else chat."""
    activation: Activation | None = None
    """none: the output is the reward. sigmoid: the reward is sigmoid(output), a probability. verdict: 1 if the
    probability is 0.5 or more, else 0, so that small differences within a group have no effect. null: verdict with
    `online`, else none."""
    max_length: PositiveInt | None = None
    """Maximum conversation length in tokens; null: the model's maximum."""
    too_long: Literal["error", "leave_out"] = "error"
    """Treatment of conversations longer than max_length. error: end the run. leave_out: exclude the rollout
    (infra_failed). Conversations are never truncated."""
    batch_tokens: PositiveInt = 16384
    """Maximum number of tokens in a scoring batch, including padding."""
    batch_size: PositiveInt | None = None
    """Maximum number of conversations in a scoring batch; null: no limit, but 1 with rollout.deterministic."""
    online: OnlineRewardConfig | None = None
    """Train the reward model together with the policy; null: the reward model is not trained."""

    @property
    def activated(self) -> Activation:
        """The activation: `activation`, else the default."""
        return self.activation or ("verdict" if self.online else "none")


class RewardTrainingConfig(Section):
    """Reward model training with algorithm.name=reward_pairs, reward_outcomes or reward_steps."""

    center_rewards_coefficient: NonNegativeFloat = 0.0
    """reward_pairs: weight of (chosen score + rejected score)^2 in the loss, which keeps scores around 0."""
    outcome: Text = "score"
    """reward_outcomes: name of the reward that labels saved rollouts."""
    step: Text | None = None
    """reward_steps: name of the turn reward that labels turns of saved rollouts; null: the sum of all turn rewards."""
    loss: Literal["bce", "mse"] = "bce"
    """reward_outcomes, reward_steps: bce for labels from 0 to 1 (probabilities); mse for any numbers."""
    label_key: Text = "label"
    """reward_outcomes: column of the label."""
    labels_key: Text = "labels"
    """reward_steps: column of the labels, a list with one entry per assistant turn; a turn without a label has null."""
