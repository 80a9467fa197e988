"""Small stored steps with rewards and advantages, computed as in training; for tests of replay and audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from random import Random

import numpy as np

from agentrl.algos.build import BuiltAlgorithm, build_algorithm
from agentrl.config import RunConfig, validate_config
from agentrl.config.document import redacted
from agentrl.config.presets import PRESETS
from agentrl.store import TrajectoryStore
from agentrl.store.schema import CONFIG
from agentrl.types.rollout import BASELINE, Group, Rollout, Stop, TurnReward
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

# reward-model presets sample no rollouts
CREDITS = [name for name, preset in PRESETS.items() if preset.family != "reward"]
POLICIES = [name for name in CREDITS if PRESETS[name].family == "policy"]
COEFFICIENTS = {1: 0.5, 2: 0.75}
"""Step -> the coefficient of the KL in the reward at that step."""


def turn(draw: Random, author: Author, count: int) -> Segment:
    ids = [draw.randrange(50) for _ in range(count)]
    if author is not Author.MODEL:
        return Segment(author, ids)
    return Segment(author, ids, [-draw.random() for _ in ids], [VersionSpan(0, count)])


def trajectory(draw: Random) -> Trajectory:
    said = [Author.MODEL, Author.TOOL] * draw.randint(0, 2)
    return Trajectory([turn(draw, author, draw.randint(1, 3)) for author in (Author.PROMPT, *said, Author.MODEL)], [])


def rollout(draw: Random, number: int, turns: bool) -> Rollout:
    histories = [trajectory(draw) for _ in range(draw.randint(1, 2))]
    models = [
        (place, segment)
        for place, history in enumerate(histories)
        for segment, each in enumerate(history.segments)
        if each.author is Author.MODEL
    ]
    rewarded = [TurnReward(*at, "step", draw.random(), draw.choice("abc")) for at in models if turns]
    rewards = {"score": draw.choice((0.0, 0.3, 1.0)), "form": draw.random(), BASELINE: 0.25}
    failed = number == 1 and draw.random() < 0.6
    return Rollout(histories, Stop.FINISHED, rewards, rewarded, infra_failed=failed, seed=number)


def a_step(step: int, turns: bool = True) -> list[Group]:
    draw = Random(step)
    return [
        Group(Task([], uid=f"{step}-{place}"), [rollout(draw, number, turns) for number in range(size)])
        for place, size in enumerate((4, 1, 3, 2))
    ]


def scored(sample: Sample, draw: Random, algorithm: BuiltAlgorithm) -> Sample:
    """Log-probabilities as the scorer returns them: float32 on trained tokens, 0 elsewhere; all negative."""

    def numbers() -> list[float]:
        return [float(np.float32(-draw.random())) * trained for trained in sample.loss_mask]

    return replace(sample, **{need: numbers() for need in sorted(algorithm.needs)})


def trained_step(algorithm: BuiltAlgorithm, groups: Sequence[Group], step: int) -> list[Sample]:
    draw = Random(step)
    if algorithm.kl_reward is not None:
        algorithm.kl_reward.control.value = COEFFICIENTS[step]
    return algorithm.credit(groups, [scored(sample, draw, algorithm) for sample in algorithm.samples(groups)])


def configured(name: str, **more: object) -> RunConfig:
    own = {"rft_threshold": 0.3} if name == "rft" else {}
    rollouts = {"n": 4 if PRESETS[name].compares and PRESETS[name].feed == "rollouts" else 1}
    sections = {"model": {"path": "m"}, "data": {"train_files": ["t.jsonl"]}, "rollout": rollouts}
    return validate_config({**sections, "algorithm": {"name": name, **own, **more}})


def weighted(groups: Sequence[Group], weights: Sequence[float]) -> Sequence[Group]:
    """Give the trajectories these weights, in turn."""
    histories = (each for group in groups for rollout in group.rollouts for each in rollout.trajectories)
    for history, weight in zip(histories, cycle(weights), strict=False):
        history.weight = weight
    return groups


def saved(
    folder: Path, config: RunConfig, *, keep_scores: bool = True, turns: bool = True, weights: Sequence[float] = (1.0,)
) -> Path:
    algorithm = build_algorithm(config)
    store = TrajectoryStore(folder / "trajectories/train", provenance={CONFIG: json.dumps(redacted(config))})
    for step in COEFFICIENTS:
        groups = weighted(a_step(step, turns), weights)
        samples = trained_step(algorithm, groups, step)
        bare = {"old_logprobs": None, "ref_logprobs": None, "values": None, "kl_coef": 0.0}
        store.write(step, groups, samples if keep_scores else [replace(sample, **bare) for sample in samples])
    return folder
