"""Bounds at which the loss of a run clips importance ratios."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass

from agentrl.algos.algorithm_options import policy_loss_options
from agentrl.algos.losses.registry import POLICY_LOSSES
from agentrl.config import RunConfig


@dataclass(frozen=True, slots=True)
class Clip:
    """Bounds on importance ratios.

    Attributes:
        low, high: logarithms of the bounds.
        of_rollouts: whether the bounds apply to the geometric mean of a rollout's ratios, not to each token's ratio.
    """

    low: float
    high: float
    of_rollouts: bool = False


_OF_TOKENS = ("vanilla", "clip_cov", "cispo")
_OF_LOGARITHMS = ("gmpo", "geo_mean")
_OF_ROLLOUTS = ("gspo",)


def clip_of(config: RunConfig) -> Clip | None:
    """Return the clipping bounds of the loss; None if the loss does not clip ratios (such as preference losses)."""
    name = _loss(config)
    if config.algorithm.preset.family != "policy" or name not in (*_OF_TOKENS, *_OF_LOGARITHMS, *_OF_ROLLOUTS):
        return None
    options = policy_loss_options(name, config.actor)
    defaults = inspect.signature(POLICY_LOSSES.get(name)).parameters
    low, high = (options.get(side, defaults[side].default) for side in ("clip_ratio_low", "clip_ratio_high"))
    if name in _OF_LOGARITHMS:
        return Clip(-low, high)
    return Clip(math.log1p(-low) if low < 1 else -math.inf, math.log1p(high), name in _OF_ROLLOUTS)


def describe_clip(config: RunConfig, clip: Clip | None) -> str:
    """Describe the clip in one sentence."""
    if clip is None:
        policy, algorithm = config.algorithm.preset.family == "policy", f"algorithm.name={config.algorithm.name}"
        return f"Clipped: none, because {f'loss {_loss(config)}' if policy else algorithm} does not clip ratios."
    bounds = f"{math.exp(clip.low):.4g} to {math.exp(clip.high):.4g}"
    whose = f"; {_loss(config)} clips the geometric mean over a rollout's tokens" if clip.of_rollouts else ""
    return f"Clipped: share outside {bounds}, the clip range of the run{whose}."


def _loss(config: RunConfig) -> str:
    correction = config.algorithm.rollout_correction
    return "reinforce" if correction.bypass_mode and correction.loss_type == "reinforce" else config.loss_name
