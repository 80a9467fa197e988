"""Health rules for rewards: one pure function per rule, as in `rules`.

| rule            | fires when                                                                              |
|-----------------|-----------------------------------------------------------------------------------------|
| guards          | the share of rollouts that raise a guard (mean of 5 steps) is more than 10 percentage   |
|                 | points above its mean in the first 5 steps                                              |
| reward_accuracy | after its warm-up, the reward model agrees with the outcomes of less than 60 % of the   |
|                 | fresh rollouts, for 3 steps                                                             |
| reward_ece      | after its warm-up, the expected calibration error of the reward model is above 0.2,     |
|                 | for 3 steps                                                                             |
| reward_drift    | after its warm-up, one round of training of the reward model changed its ranking of     |
|                 | held-out rollouts: the rank correlation with the previous ranking is below 0.5          |

These rules fire even if the reward rises, because reward hacking raises the reward too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

from agentrl.reporting.health.history import NUM_FIRST, NUM_RECENT, History, values
from agentrl.telemetry.metrics import rewards
from agentrl.telemetry.metrics.base import Metric
from agentrl.telemetry.metrics.reward_model import ACCURACY, DRIFT, ECE, WARMING

GUARD_METRICS = rewards.GUARD.name.removesuffix("<name>")
"""Prefix of metrics `<prefix><guard>`: the share of rollouts that raised the guard."""
MAX_GUARD_RISE = 0.1
MODEL_STEPS = 3


def guards(history: History) -> str | None:
    """More and more rollouts look like reward hacking."""
    names = [name for name in history.now if name.startswith(GUARD_METRICS)]
    rises = {name.removeprefix(GUARD_METRICS): _rise(history, name) for name in names}
    risen = [f"{name} {first:.0%} to {now:.0%}" for name, (first, now) in rises.items() if now - first > MAX_GUARD_RISE]
    if not risen:
        return None
    return (
        f"guards flag more rollouts than in the first steps ({', '.join(risen)}): possible reward hacking; "
        "`agentrl replay RUN hacking` shows the rewarded rollouts among them"
    )


def reward_accuracy(history: History) -> str | None:
    """The reward model is often wrong about outcomes."""
    if not history.all_latest(MODEL_STEPS, lambda step: _judging(step, ACCURACY, 1.0) < ACCURACY.lowest):
        return None
    return (
        f"for {MODEL_STEPS} steps the reward model predicts less than {ACCURACY.lowest:.0%} of the fresh rollouts "
        "correctly: use a longer warm-up (reward.reward_model.online.warmup_steps), or more training "
        "(every, epochs, optim.lr)"
    )


def reward_ece(history: History) -> str | None:
    """The reward model's probabilities are badly calibrated."""
    if not history.all_latest(MODEL_STEPS, lambda step: _judging(step, ECE, 0.0) > ECE.highest):
        return None
    return (
        f"for {MODEL_STEPS} steps the reward model's probabilities are off by more than {ECE.highest} on fresh "
        "rollouts: use more training (reward.reward_model.online.every, epochs), a lower optim.lr, or a longer buffer"
    )


def reward_drift(history: History) -> str | None:
    """The reward model's ranking changed abruptly."""
    if not (value := history.now.get(DRIFT.name, 0.0)) > DRIFT.highest or history.now.get(WARMING.name):
        return None
    return (
        f"the reward model ranks held-out rows differently than before (rank correlation {1 - value:.2f}): lower its "
        "learning rate"
    )


def _judging(step: Mapping[str, float], metric: Metric, otherwise: float) -> float:
    """Return a reward-model metric of a step; `otherwise` during warm-up or if the metric is missing."""
    return otherwise if step.get(WARMING.name) else step.get(metric.name, otherwise)


def _rise(history: History, name: str) -> tuple[float, float]:
    """Return (mean share in the first 5 steps, in the latest 5 steps); zeros before ten steps or without a mean."""
    first, latest = values(history.first, name), values(history.latest(NUM_RECENT), name)
    if len(history.recent) < NUM_FIRST + NUM_RECENT or not (first and latest):
        return 0.0, 0.0
    return fmean(first), fmean(latest)


REWARD_RULES: Mapping[str, Callable[[History], str | None]] = {
    rule.__name__: rule for rule in (guards, reward_accuracy, reward_ece, reward_drift)
}
"""Maps a rule's name to its function, which returns a warning or None."""
