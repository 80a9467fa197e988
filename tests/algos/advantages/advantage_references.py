"""Batches for advantage estimation, and a plain-Python reference of every estimator, written from its paper."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from agentrl.algos import estimate_advantages

NUM_TOKENS = 7
REWARDS = (-1.0, 0.0, 0.25, 0.5, 1.0, 2.0)


@dataclass
class Row:
    """One row; lists have length `NUM_TOKENS`. `keys` has one entry per turn in the mask."""

    uid: str
    rollout: str
    mask: list[bool]
    rewards: list[float]
    turn_rewards: list[float]
    step_ends: list[bool]
    values: list[float]
    keys: list[str | None]
    components: dict[str, float]
    baseline: float
    valid: bool = True


@dataclass
class Token:
    """A trained token of a rollout."""

    row: int
    column: int
    reward: float
    turn_reward: float
    value: float
    ends_step: bool
    turn: int
    key: str | None


@dataclass
class Rollout:
    uid: str
    valid: bool
    row: Row
    tokens: list[Token] = field(default_factory=list)

    @property
    def score(self) -> float:
        return sum(token.reward for token in self.tokens)

    @property
    def rewards(self) -> list[float]:
        return [token.reward + token.turn_reward for token in self.tokens]

    @property
    def turns(self) -> list[list[Token]]:
        numbers = sorted({token.turn for token in self.tokens})
        return [[token for token in self.tokens if token.turn == number] for number in numbers]

    @property
    def steps(self) -> list[list[Token]]:
        steps: list[list[Token]] = [[]]
        for token in self.tokens:
            steps[-1].append(token)
            if token.ends_step:
                steps.append([])
        return [step for step in steps if step]


def random_rows(seed: int, num_groups: int = 3, largest: int = 4) -> list[Row]:
    """Groups of 1 to `largest` rollouts of 1 to 3 rows, shuffled; some failed, some groups have equal rewards."""
    draw = random.Random(seed)
    rows = []
    for uid in "abcdefgh"[:num_groups]:
        same = draw.random() < 0.2
        for rollout in range(draw.randint(1, largest)):
            rows += _rollout(draw, uid, str(rollout), 1.0 if same else None)
    order = {name: draw.random() for name in sorted({(row.uid, row.rollout) for row in rows})}
    return sorted(rows, key=lambda row: order[row.uid, row.rollout])


def _rollout(draw: random.Random, uid: str, name: str, score: float | None) -> list[Row]:
    reward = draw.choice(REWARDS) if score is None else score
    components = {"score": reward, "exact": draw.choice(REWARDS), "format": draw.choice((0.0, 1.0))}
    valid, baseline = draw.random() < 0.9, draw.choice(REWARDS)
    rows = [_row(draw, uid, name, components, valid, baseline) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    last = max(index for index, trained in enumerate(rows[-1].mask) if trained)
    rows[-1].rewards[last] = reward
    return rows


def _row(
    draw: random.Random, uid: str, rollout: str, components: dict[str, float], valid: bool, baseline: float
) -> Row:
    mask = [False, *(draw.random() < 0.6 for _ in range(NUM_TOKENS - 1))]
    mask[draw.randrange(1, NUM_TOKENS)] = True
    ends = [mask[index] and not (mask[index + 1 :] or [False])[0] for index in range(NUM_TOKENS)]
    return Row(
        uid,
        rollout,
        mask,
        [0.0] * NUM_TOKENS,
        [draw.choice(REWARDS) if end and draw.random() < 0.7 else 0.0 for end in ends],
        [trained and draw.random() < 0.3 for trained in mask],
        [draw.uniform(-1, 1) for _ in mask],  # for every token: values off the mask must not be read
        [draw.choice((None, "s", "t", "s")) for end in ends if end],
        components,
        baseline,
        valid,
    )


def estimated(name: str, rows: list[Row], reads: tuple[str, ...] = (), **options: Any) -> list[list[list[float]]]:
    """Our advantages and returns in float64; `reads` names the optional inputs to pass."""
    inputs = {
        "values": torch.tensor([row.values for row in rows], dtype=torch.float64),
        "baselines": torch.tensor([row.baseline for row in rows], dtype=torch.float64),
        "turn_rewards": torch.tensor([row.turn_rewards for row in rows], dtype=torch.float64),
        "step_ends": torch.tensor([row.step_ends for row in rows]),
        "observation_keys": [row.keys for row in rows],
        "components": {
            key: torch.tensor([row.components[key] for row in rows], dtype=torch.float64) for key in rows[0].components
        },
    }
    both = estimate_advantages(
        name,
        torch.tensor([row.rewards for row in rows], dtype=torch.float64),
        torch.tensor([row.mask for row in rows]),
        [row.uid for row in rows],
        rollout_ids=[row.rollout for row in rows],
        valid=[row.valid for row in rows],
        **{key: inputs[key] for key in reads},
        **options,
    )
    return [each.tolist() for each in both]


def rollouts_of(rows: list[Row]) -> list[Rollout]:
    found: dict[tuple[str, str], Rollout] = {}
    for number, row in enumerate(rows):
        rollout = found.setdefault((row.uid, row.rollout), Rollout(row.uid, row.valid, row))
        turns, trained_before = -1, False
        offset = rollout.tokens[-1].turn + 1 if rollout.tokens else 0
        for column, trained in enumerate(row.mask):
            if trained:
                turns += not trained_before
                rollout.tokens.append(
                    Token(
                        number,
                        column,
                        row.rewards[column],
                        row.turn_rewards[column],
                        row.values[column],
                        row.step_ends[column],
                        offset + turns,
                        row.keys[turns],
                    )
                )
            trained_before = trained
    return list(found.values())


def groups_of(rollouts: list[Rollout]) -> Iterator[list[Rollout]]:
    """The valid rollouts of each group that has more than one."""
    for uid in dict.fromkeys(rollout.uid for rollout in rollouts):
        group = [rollout for rollout in rollouts if rollout.uid == uid and rollout.valid]
        if len(group) > 1:
            yield group


Credit = dict[tuple[int, int], float]
"""(row, column) -> advantage."""


def on_all(rollout: Rollout, value: float) -> Credit:
    return {(token.row, token.column): value for token in rollout.tokens}


def standard(values: list[float], by_std: bool = True) -> list[float]:
    if max(values) - min(values) < 1e-12:
        return [0.0] * len(values)
    mean = statistics.fmean(values)
    scale = statistics.stdev(values) + 1e-6 if by_std else 1.0
    return [(value - mean) / scale for value in values]


def whitened(credit: Credit, rollouts: list[Rollout]) -> Credit:
    there = {(token.row, token.column) for rollout in rollouts if rollout.valid for token in rollout.tokens}
    values = [credit[place] for place in sorted(there)]
    if len(values) < 2 or max(values) - min(values) < 1e-12:
        return {}
    mean, variance = statistics.fmean(values), statistics.variance(values)
    return {place: (credit[place] - mean) / math.sqrt(variance + 1e-8) for place in there}


def by_group(rows: list[Row], compare: Callable[[list[Rollout]], list[float]]) -> Credit:
    credit: Credit = {}
    for group in groups_of(rollouts_of(rows)):
        if len({rollout.score for rollout in group}) > 1:
            for rollout, value in zip(group, compare(group), strict=True):
                credit |= on_all(rollout, value)
    return credit


def grpo(rows: list[Row], norm_adv_by_std: bool = True) -> Credit:
    return by_group(rows, lambda group: standard([rollout.score for rollout in group], norm_adv_by_std))


def dr_grpo(rows: list[Row]) -> Credit:
    return grpo(rows, norm_adv_by_std=False)


def grpo_passk(rows: list[Row], norm_adv_by_std: bool = True) -> Credit:
    def marginal(group: list[Rollout]) -> list[float]:
        scores = [rollout.score for rollout in group]
        scale = statistics.stdev(scores) + 1e-6 if norm_adv_by_std else 1.0
        return [(max(scores) - max(scores[:i] + scores[i + 1 :])) / scale for i in range(len(scores))]

    return by_group(rows, marginal)


def rloo(rows: list[Row]) -> Credit:
    def against_others(group: list[Rollout]) -> list[float]:
        scores = [rollout.score for rollout in group]
        return [score - statistics.fmean(scores[:i] + scores[i + 1 :]) for i, score in enumerate(scores)]

    return by_group(rows, against_others)


def opo(rows: list[Row]) -> Credit:
    def against_weighted(group: list[Rollout]) -> list[float]:
        baseline = sum(len(r.tokens) * r.score for r in group) / sum(len(r.tokens) for r in group)
        return [rollout.score - baseline for rollout in group]

    return by_group(rows, against_weighted)


def gpg(rows: list[Row]) -> Credit:
    rollouts = rollouts_of(rows)
    num_valid = sum(rollout.valid for rollout in rollouts)
    num_with_gradient = sum(len(g) for g in groups_of(rollouts) if len({rollout.score for rollout in g}) > 1)
    return {place: num_valid / num_with_gradient * value for place, value in dr_grpo(rows).items()}


def reinforce_plus_plus_baseline(rows: list[Row]) -> Credit:
    rollouts, centred = rollouts_of(rows), dr_grpo(rows)
    zeros: Credit = {}
    for rollout in rollouts:
        zeros |= on_all(rollout, 0.0)
    result = whitened(zeros | centred, rollouts)
    return {place: value for place, value in result.items() if place in centred}


def gdpo(
    rows: list[Row], keys: tuple[str, ...] = ("exact", "format"), weights: tuple[float, ...] = (1.0, 1.0)
) -> Credit:
    rollouts = rollouts_of(rows)
    sums: Credit = {}
    compared: Credit = {}
    for rollout in rollouts:
        sums |= on_all(rollout, 0.0)
    for group in groups_of(rollouts):
        columns = [standard([rollout.row.components[key] for rollout in group]) for key in keys]
        for rollout, *values in zip(group, *columns, strict=True):
            sums |= on_all(rollout, sum(w * value for w, value in zip(weights, values, strict=True)))
            if any(values):
                compared |= on_all(rollout, 1.0)
    return {place: value for place, value in whitened(sums, rollouts).items() if place in compared}


def remax(rows: list[Row]) -> Credit:
    credit: Credit = {}
    for rollout in rollouts_of(rows):
        for number, token in enumerate(rollout.tokens if rollout.valid else []):
            to_go = sum(each.reward for each in rollout.tokens[number:])
            credit[token.row, token.column] = to_go - rollout.row.baseline
    return credit


def token_returns(rows: list[Row], gamma: float) -> Credit:
    credit: Credit = {}
    for rollout in rollouts_of(rows):
        for number, token in enumerate(rollout.tokens if rollout.valid else []):
            credit[token.row, token.column] = sum(r * gamma**n for n, r in enumerate(rollout.rewards[number:]))
    return credit


def reinforce_plus_plus(rows: list[Row], gamma: float = 1.0) -> Credit:
    return whitened(token_returns(rows, gamma), rollouts_of(rows))


def raw_gae(rows: list[Row], gamma: float, lam: float) -> Credit:
    """Computed as the sum over l of (gamma lam)^l d_{t+l}."""
    credit: Credit = {}
    for rollout in rollouts_of(rows):
        values = [token.value for token in rollout.tokens] + [0.0]
        deltas = [r + gamma * values[n + 1] - values[n] for n, r in enumerate(rollout.rewards)]
        for number, token in enumerate(rollout.tokens if rollout.valid else []):
            credit[token.row, token.column] = sum((gamma * lam) ** n * delta for n, delta in enumerate(deltas[number:]))
    return credit


def gae(rows: list[Row], gamma: float = 1.0, lam: float = 1.0) -> Credit:
    return whitened(raw_gae(rows, gamma, lam), rollouts_of(rows))


def grpo_process(rows: list[Row], spans: str = "steps") -> Credit:
    credit: Credit = {}
    for group in groups_of(rollouts_of(rows)):
        steps = [(rollout, span) for rollout in group for span in getattr(rollout, spans)]
        normal = standard([sum(token.reward + token.turn_reward for token in span) for _, span in steps])
        for number, (rollout, span) in enumerate(steps):
            later = sum(normal[n] for n in range(number, len(steps)) if steps[n][0] is rollout)
            credit |= {(token.row, token.column): later for token in span}
    return credit


def turn_returns(rollout: Rollout, gamma: float) -> list[float]:
    rewards = [sum(token.reward + token.turn_reward for token in turn) for turn in rollout.turns]
    return [sum(r * gamma**n for n, r in enumerate(rewards[k:])) for k in range(len(rewards))]


def grpo_turn(rows: list[Row], gamma: float = 1.0) -> Credit:
    credit: Credit = {}
    for group in groups_of(rollouts_of(rows)):
        turns = [turn for rollout in group for turn in rollout.turns]
        normal = standard([value for rollout in group for value in turn_returns(rollout, gamma)])
        for turn, value in zip(turns, normal, strict=True):
            credit |= {(token.row, token.column): value for token in turn}
    return credit


def mt_grpo(rows: list[Row], turn_advantage_weight: float = 1.0) -> Credit:
    credit: Credit = {}
    for group in groups_of(rollouts_of(rows)):
        outcomes = standard([sum(token.reward + token.turn_reward for token in r.turns[-1]) for r in group])
        for rollout, value in zip(group, outcomes, strict=True):
            credit |= on_all(rollout, value)
        for k in range(max(len(rollout.turns) for rollout in group)):
            went_on = [rollout.turns[k] for rollout in group if len(rollout.turns) > k + 1]
            own = standard([sum(token.turn_reward for token in turn) for turn in went_on]) if went_on else []
            for turn, value in zip(went_on, own, strict=True):
                for token in turn:
                    credit[token.row, token.column] += turn_advantage_weight * value
    return credit


def gigpo(
    rows: list[Row], step_advantage_weight: float = 1.0, gamma: float = 0.95, norm_adv_by_std: bool = True
) -> Credit:
    credit: Credit = {}
    for group in groups_of(rollouts_of(rows)):
        for rollout, value in zip(group, standard([sum(r.rewards) for r in group], norm_adv_by_std), strict=True):
            credit |= on_all(rollout, value)
        visits = [(turn, value) for r in group for turn, value in zip(r.turns, turn_returns(r, gamma), strict=True)]
        for state in {turn[0].key for turn, _ in visits} - {None}:
            here = [(turn, value) for turn, value in visits if turn[0].key == state]
            own = standard([value for _, value in here], norm_adv_by_std)
            for (turn, _), value in zip(here, own, strict=True):
                for token in turn:
                    credit[token.row, token.column] += step_advantage_weight * value
    return credit


TURNS = ("turn_rewards",)
Estimator = tuple[str, tuple[str, ...], dict[str, Any], Callable[[list[Row]], Credit]]
"""Name, inputs beside the rewards, options, and the reference."""

ESTIMATORS: dict[str, Estimator] = {
    "grpo": ("grpo", (), {}, grpo),
    "grpo without std": ("grpo", (), {"norm_adv_by_std": False}, dr_grpo),
    "grpo_vectorized": ("grpo_vectorized", (), {}, grpo),
    "dr_grpo": ("dr_grpo", (), {}, dr_grpo),
    "grpo_passk": ("grpo_passk", (), {}, grpo_passk),
    "grpo_passk without std": ("grpo_passk", (), {"norm_adv_by_std": False}, lambda rows: grpo_passk(rows, False)),
    "rloo": ("rloo", (), {}, rloo),
    "rloo_vectorized": ("rloo_vectorized", (), {}, rloo),
    "remax": ("remax", ("baselines",), {}, remax),
    "reinforce_plus_plus": ("reinforce_plus_plus", TURNS, {}, reinforce_plus_plus),
    "reinforce_plus_plus discounted": (
        "reinforce_plus_plus",
        TURNS,
        {"gamma": 0.9},
        lambda rows: reinforce_plus_plus(rows, 0.9),
    ),
    "reinforce_plus_plus_baseline": ("reinforce_plus_plus_baseline", (), {}, reinforce_plus_plus_baseline),
    "opo": ("opo", (), {}, opo),
    "gpg": ("gpg", (), {}, gpg),
    "gdpo": ("gdpo", ("components",), {}, gdpo),
    "gdpo weighted": (
        "gdpo",
        ("components",),
        {"gdpo_reward_keys": ["format", "score", "exact"], "gdpo_reward_weights": [0.5, 2, 0]},
        lambda rows: gdpo(rows, ("format", "score", "exact"), (0.5, 2, 0)),
    ),
    "gae": ("gae", ("values", *TURNS), {}, gae),
    "gae discounted": ("gae", ("values", *TURNS), {"gamma": 0.9, "lam": 0.8}, lambda rows: gae(rows, 0.9, 0.8)),
    "gae raw": (
        "gae",
        ("values", *TURNS),
        {"gamma": 0.9, "lam": 0.8, "whiten": False},
        lambda rows: raw_gae(rows, 0.9, 0.8),
    ),
    "grpo_process of steps": ("grpo_process", ("step_ends", *TURNS), {}, grpo_process),
    "grpo_process of turns": ("grpo_process", TURNS, {}, lambda rows: grpo_process(rows, "turns")),
    "grpo_process of outcomes": ("grpo_process", (), {}, grpo),
    "grpo_turn": ("grpo_turn", TURNS, {}, grpo_turn),
    "grpo_turn discounted": ("grpo_turn", TURNS, {"gamma": 0.5}, lambda rows: grpo_turn(rows, 0.5)),
    "mt_grpo": ("mt_grpo", TURNS, {"turn_advantage_weight": 0.5}, lambda rows: mt_grpo(rows, 0.5)),
    "gigpo": ("gigpo", ("observation_keys", *TURNS), {}, gigpo),
    "gigpo centred": (
        "gigpo",
        ("observation_keys", *TURNS),
        {"step_advantage_weight": 0.5, "gamma": 0.5, "norm_adv_by_std": False},
        lambda rows: gigpo(rows, 0.5, 0.5, False),
    ),
}
