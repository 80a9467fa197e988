"""What is not healthy in how a run is rewarded: one pure function a rule, as in health_rules.

| rule            | fires when                                                                              |
|-----------------|-----------------------------------------------------------------------------------------|
| guards          | a guard (mean of 5 steps) is raised by 10 % of the rollouts more than in the first 5    |
| reward_accuracy | past its warm-up the reward model agrees with the outcomes of fresh rollouts in less    |
|                 | than 60 %, for 3 steps                                                                  |
| reward_ece      | its probabilities are off by more than 0.2 on average (expected calibration error),     |
|                 | likewise                                                                                |
| reward_drift    | one round of learning changed the order of held-out rollouts: rank correlation with     |
|                 | the one before below 0.5                                                                |

A rising reward is no excuse: that is what a hacked reward looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

from agentrl.trainer.health_history import NUM_FIRST, NUM_RECENT, History, values

GUARD_METRICS = "reward/guard/"
"""Before a guard's name: the share of the rollouts that raised it."""
MAX_GUARD_RISE = 0.1
MODEL_STEPS, MIN_ACCURACY, MAX_ECE, MAX_DRIFT = 3, 0.6, 0.2, 0.5
WARMING = "reward_model/warming_up"
"""1 while the rule's outcome is the reward."""


def guards(history: History) -> str | None:
    """More and more answers look as if they please the reward and do not earn it."""
    names = [name for name in history.now if name.startswith(GUARD_METRICS)]
    rises = {name.removeprefix(GUARD_METRICS): _rise(history, name) for name in names}
    told = [f"{name} {first:.0%} to {now:.0%}" for name, (first, now) in rises.items() if now - first > MAX_GUARD_RISE]
    if not told:
        return None
    return (
        f"more rollouts raise a guard than in the first steps ({', '.join(told)}): is the reward being hacked? "
        "`agentrl replay RUN hacking` shows those that it pays"
    )


def reward_accuracy(history: History) -> str | None:
    """The policy is paid by a model that does not know what is right."""
    if not history.all_latest(MODEL_STEPS, lambda step: _judging(step, "accuracy", 1.0) < MIN_ACCURACY):
        return None
    return (
        f"for {MODEL_STEPS} steps the reward model is right about less than {MIN_ACCURACY:.0%} of the fresh rollouts:"
        " let it learn longer first (reward.reward_model.online.warmup_steps), or more (every, epochs, optim.lr)"
    )


def reward_ece(history: History) -> str | None:
    """The policy is paid by a model that is too sure."""
    if not history.all_latest(MODEL_STEPS, lambda step: _judging(step, "ece", 0.0) > MAX_ECE):
        return None
    return (
        f"for {MODEL_STEPS} steps the reward model's probabilities are off by more than {MAX_ECE} on fresh rollouts:"
        " more learning (reward.reward_model.online.every, epochs), a lower optim.lr, or a longer buffer"
    )


def reward_drift(history: History) -> str | None:
    """What was good a moment ago is bad now."""
    if not (value := history.now.get("reward_model/drift", 0.0)) > MAX_DRIFT or history.now.get(WARMING):
        return None
    return f"the reward model ranks held-out rows anew (rank correlation {1 - value:.2f}): lower its learning rate"


def _judging(step: Mapping[str, float], name: str, otherwise: float) -> float:
    """A metric of a step in which the policy was paid by the reward model."""
    return otherwise if step.get(WARMING) else step.get(f"reward_model/{name}", otherwise)


def _rise(history: History, name: str) -> tuple[float, float]:
    """(share in the first 5 steps, in the latest 5); twice 0 before there are ten."""
    first, latest = values(history.first, name), values(history.latest(NUM_RECENT), name)
    if len(history.recent) < NUM_FIRST + NUM_RECENT or not (first and latest):
        return 0.0, 0.0
    return fmean(first), fmean(latest)


REWARD_RULES: Mapping[str, Callable[[History], str | None]] = {
    rule.__name__: rule for rule in (guards, reward_accuracy, reward_ece, reward_drift)
}
"""Name -> what it has to say, or None."""
