"""Ratios are compared with the clip range of the run's own loss, or reported as unclipped."""

from __future__ import annotations

import math

import numpy as np
import pytest
from credited_steps import configured

from agentrl.config import RunConfig
from agentrl.replay.logprobs.checkpoint_scores import ScoredRollout
from agentrl.replay.logprobs.clipping import Clip, clip_of, describe_clip
from agentrl.replay.logprobs.ratios import figures


def with_actor(name: str, **actor: object) -> RunConfig:
    config = configured(name)
    return config.model_copy(update={"actor": config.actor.model_copy(update=actor)})


@pytest.mark.parametrize(
    ("config", "bounds", "of_rollouts"),
    [
        (configured("grpo"), (0.8, 1.2), False),
        (with_actor("grpo", clip_ratio_high=0.28), (0.8, 1.28), False),
        (configured("cispo"), (0.0, 5.0), False),
        (configured("gspo"), (1 - 3e-4, 1 + 4e-4), True),
        (with_actor("gmpo", clip_ratio=0.3), (math.exp(-0.3), math.exp(0.3)), False),
    ],
)
def test_reported_clip_equals_that_of_the_loss(
    config: RunConfig, bounds: tuple[float, float], of_rollouts: bool
) -> None:
    clip = clip_of(config)
    assert clip is not None
    assert (math.exp(clip.low), math.exp(clip.high)) == pytest.approx(bounds)
    assert clip.of_rollouts is of_rollouts
    assert ("geometric mean over a rollout's tokens" in describe_clip(config, clip)) is of_rollouts


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("sapo", {}, "loss sapo"),
        ("kl_cov", {}, "loss kl_cov"),
        ("pairwise", {}, "algorithm.name=pairwise"),
        ("rft", {}, "algorithm.name=rft"),
        ("grpo", {"rollout_correction": {"loss_type": "reinforce"}}, "loss reinforce"),
    ],
)
def test_loss_without_clip_is_reported_as_unclipped(name: str, more: dict[str, object], said: str) -> None:
    config = configured(name, **more)
    assert clip_of(config) is None
    assert describe_clip(config, None) == f"Clipped: none, because {said} does not clip ratios."


def test_shares_are_of_what_the_clip_bounds() -> None:
    ratios = np.log([[1.0, 1.5], [1.1, 1.0]])
    scored = [
        ScoredRollout(1, ("", n, ""), frozenset({0}), None, np.zeros(2), each, ()) for n, each in enumerate(ratios)
    ]
    bounds = np.log([0.8, 1.2]).tolist()
    found = [figures(scored, 0.95, clip) for clip in (Clip(*bounds), Clip(*bounds, of_rollouts=True), None)]
    assert [(each.tokens.clipped, each.rollouts.clipped) for each in found] == [(0.25, None), (None, 0.5), (None, None)]
