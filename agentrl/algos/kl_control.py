"""The coefficient of a KL in the reward: fixed, or following a target (Ziegler et al. 2019, arXiv:1909.08593)."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from agentrl.errors import ConfigError

MAX_ERROR = 0.2
"""Largest relative error that one update answers to, as in the paper."""


@dataclass(slots=True)
class FixedKL:
    """A coefficient that stays as it is. `value` is all its state."""

    value: float

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing; see `AdaptiveKL.update`."""


@dataclass(slots=True)
class AdaptiveKL:
    """A coefficient that grows while the KL is above the target, and shrinks below it. `value` is all its state.

    Attributes:
        value: the coefficient; it begins as `init`.
        target: the KL that is aimed at, in nats.
        horizon: rollouts over which an error is corrected.
    """

    init: InitVar[float]
    target: float
    horizon: float
    value: float = field(init=False)

    def __post_init__(self, init: float) -> None:
        self.value = init

    def update(self, current_kl: float, n_steps: int) -> None:
        """Value times 1 + clip(kl / target - 1, -0.2, 0.2) * n_steps / horizon.

        A KL of 0.3 at a target of 0.2 and 100 rollouts at a horizon of 1000: 1 + 0.2 * 0.1 = 1.02.

        Args:
            current_kl: measured over a step, in nats.
            n_steps: rollouts of that step.

        Raises:
            ConfigError: the horizon is so short that the coefficient could change its sign.
        """
        if MAX_ERROR * n_steps >= self.horizon:
            raise ConfigError(
                f"horizon {self.horizon:g} of the adaptive KL is too short for {n_steps} rollouts a step, the"
                f" coefficient could change its sign: take more than {MAX_ERROR * n_steps:g}"
            )
        error = min(max(current_kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.value *= 1 + error * n_steps / self.horizon
