"""Compare losses, KL, aggregation and preferences with verl's and TRL's on random batches in float64.

A case holds an input for a peer (verl or TRL) and agentrl's result. Most results are a loss, and the gradient of the
loss with respect to every log-probability.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algos import AdaptiveKL, aggregate, kl, policy_loss, preference_loss, value_loss

Numbers = list[float]
ROWS, WIDTH, LENGTH = 6, 9, 20
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KINDS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "k3+", "low_var_kl+")


@dataclass(frozen=True)
class Case:
    """A `row` of a table in docs/algorithms.md, the peer, the peer's input, and a function that returns our result."""

    row: str
    peer: str
    asked: dict[str, object]
    ours: Callable[[], Numbers]


def make_batch(seed: int) -> dict[str, list[list[float]]]:
    """Return random rows with tool spans. Values outside the mask are random too, and must not change the result."""
    draw = random.Random(seed)
    logprobs = matrix(lambda: -draw.expovariate(1.0))
    per_row = [draw.gauss(0, 1) for _ in range(ROWS)]
    mask = [[float(draw.random() < 0.7) for _ in range(WIDTH)] for _ in range(ROWS)]
    for row in mask:
        row[draw.randrange(WIDTH)] = 1.0  # no row is empty: empty rows have their own cases
    return {
        "logprobs": logprobs,
        "old_logprobs": near(logprobs, draw, 0.4),
        "ref_logprobs": near(logprobs, draw, 0.8),
        "sequence_advantages": [[value] * WIDTH for value in per_row],
        "token_advantages": matrix(lambda: draw.gauss(0, 1)),
        "returns": matrix(lambda: draw.gauss(-1, 1)),
        "weights": matrix(lambda: draw.uniform(0.5, 2)),
        "mask": mask,
        "mask_with_empty_rows": [*mask[:-2], [0.0] * WIDTH, [0.0] * WIDTH],
    }


def matrix(number: Callable[[], float]) -> list[list[float]]:
    return [[number() for _ in range(WIDTH)] for _ in range(ROWS)]


def near(logprobs: list[list[float]], draw: random.Random, distance: float) -> list[list[float]]:
    return [[min(-1e-3, value + draw.gauss(0, distance)) for value in row] for row in logprobs]


BATCHES = [make_batch(seed) for seed in range(4)]


def tensors(batch: int) -> dict[str, Tensor]:
    found = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in BATCHES[batch].items()}
    return {name: values.bool() if name.startswith("mask") else values for name, values in found.items()}


def with_gradient(loss: Tensor, of: Tensor) -> Numbers:
    (gradient,) = torch.autograd.grad(loss, of)
    return [loss.item(), *gradient.flatten().tolist()]


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for batch in range(len(BATCHES)):
        yield from verl_policy_cases(batch)
        yield from verl_other_cases(batch)
        yield from trl_policy_cases(batch)
        yield from trl_preference_cases(batch)
    measured = [0.01, 0.3, 0.11, 0.09, 5.0]
    asked = {"kind": "control", "init": 0.05, "target": 0.1, "horizon": 1000, "n_steps": 64, "measured": measured}
    yield Case("AdaptiveKL", "verl", {**asked, "batch": 0}, lambda: controlled(0.05, 0.1, 1000, 64, measured))


def verl_policy_cases(batch: int) -> Iterator[Case]:
    wide = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    covariance = {**wide, "clip_cov_lb": 0.2, "clip_cov_ub": 3.0}
    asked: list[tuple[str, str, dict[str, float], tuple[str, ...]]] = [
        ("vanilla", "vanilla", wide, MODES),
        ("vanilla", "vanilla", {**wide, "clip_ratio_c": 1.4}, MODES[:1]),
        ("gspo", "gspo", {"clip_ratio_low": 0.05, "clip_ratio_high": 0.06}, (MODES[0], MODES[2])),
        ("cispo", "cispo", wide, MODES[:1]),
        ("gmpo", "geo_mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.3}, MODES[2:3]),
        ("sapo", "sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, MODES[2:3]),
        ("clip_cov", "clip_cov", {**covariance, "clip_cov_ratio": 1.0}, MODES[:1]),  # below 1, verl draws other tokens
        ("kl_cov", "kl_cov", {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7}, MODES[:1]),
        ("dppo", "dppo_tv", {"clip_ratio_low": 0.05, "clip_ratio_high": 0.08, "clip_ratio_c": 1.5}, MODES[:1]),
        ("dppo", "dppo_kl", {"clip_ratio_low": 0.02, "clip_ratio_high": 0.03, "clip_ratio_c": 1.5}, MODES[:1]),
        ("dro", "dro", {"dro_beta": 0.3}, MODES[:1]),
        ("gpg", "gpg", {}, MODES[:1]),
        ("reinforce", "reinforce", {}, MODES[:1]),
    ]
    for row, name, options, modes in asked:
        kinds = ["sequence_advantages"] if row == "gmpo" else ["sequence_advantages", "token_advantages"]
        for aggregation in modes:
            for advantages in kinds:
                weighed = advantages == "token_advantages"
                question = {"kind": "policy", "name": name, "options": options, "aggregation": aggregation}
                question |= {"advantages": advantages, "weighed": weighed, "batch": batch}
                yield Case(row, "verl", question, policy(batch, name, options, aggregation, advantages, weighed))


def policy(
    batch: int, name: str, options: dict[str, float], aggregation: str, advantages: str, weighed: bool = False
) -> Callable[[], Numbers]:
    def answer() -> Numbers:
        read = tensors(batch)
        logprobs = read["logprobs"].requires_grad_()
        loss, _ = policy_loss(
            name,
            logprobs,
            read["old_logprobs"],
            read[advantages],
            read["mask"],
            importance_weights=read["weights"] if weighed else None,
            aggregation=aggregation,
            **options,
        )
        return with_gradient(loss, logprobs)

    return answer


def verl_other_cases(batch: int) -> Iterator[Case]:
    for mode in MODES:
        for mask in ("mask", "mask_with_empty_rows"):
            question = {"kind": "aggregation", "aggregation": mode, "mask": mask, "length": LENGTH, "batch": batch}
            yield Case(mode, "verl", question, aggregated(batch, mode, mask))
        question = {"kind": "value", "aggregation": mode, "cliprange_value": 0.2, "batch": batch}
        yield Case("value_loss", "verl", question, valued(batch, mode))
    for kind in KINDS:
        question = {"kind": "kl", "name": kind, "batch": batch}
        yield Case(kind, "verl", question, diverged(batch, kind))


def aggregated(batch: int, mode: str, mask: str) -> Callable[[], Numbers]:
    def answer() -> Numbers:
        read = tensors(batch)
        values = read["logprobs"].requires_grad_()
        return with_gradient(aggregate(mode, values, read[mask], norm_length=LENGTH), values)

    return answer


def valued(batch: int, mode: str) -> Callable[[], Numbers]:
    def answer() -> Numbers:
        read = tensors(batch)
        values = read["logprobs"].requires_grad_()
        loss, metrics = value_loss(
            values, read["returns"], read["old_logprobs"], read["mask"], cliprange_value=0.2, aggregation=mode
        )
        return [*with_gradient(loss, values), float(metrics["vf_clipfrac"])]

    return answer


def diverged(batch: int, kind: str) -> Callable[[], Numbers]:
    def answer() -> Numbers:
        read = tensors(batch)
        logprobs = read["logprobs"].requires_grad_()
        estimate = kl(kind, logprobs, read["old_logprobs"])
        (gradient,) = torch.autograd.grad(estimate.sum(), logprobs)
        return [*estimate.flatten().tolist(), *gradient.flatten().tolist()]

    return answer


def controlled(init: float, target: float, horizon: float, n_steps: int, measured: list[float]) -> Numbers:
    control, values = AdaptiveKL(init, target, horizon), []
    for current in measured:
        control.update(current, n_steps)
        values.append(control.value)
    return values


def trl_policy_cases(batch: int) -> Iterator[Case]:
    """Yield the cases for TRL's policy losses, aggregations and KL estimate."""
    theirs = {"epsilon_low": 0.2, "epsilon_high": 0.28}
    ours = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1e9}  # TRL has no dual clip
    sequence = {"epsilon_low": 0.05, "epsilon_high": 0.06, "level": "sequence"}
    clips = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.06}
    token, total, mean, norm = MODES
    asked = [
        # row of the table, TRL's loss_type and options, agentrl's loss, options and aggregation
        ("vanilla", "grpo", theirs, "vanilla", ours, mean),
        ("vanilla", "bnpo", theirs, "vanilla", ours, token),
        ("vanilla", "dapo", theirs, "vanilla", ours, token),
        ("vanilla", "dr_grpo", theirs, "vanilla", ours, norm),
        ("vanilla", "luspo", theirs, "vanilla", ours, total),
        ("gspo", "grpo", sequence, "gspo", clips, mean),
        ("cispo", "cispo", {"epsilon_high": 1.28}, "cispo", {"clip_ratio_high": 0.28}, token),
        ("sapo", "sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, "sapo", {}, mean),
        ("gmpo", "gmpo", {"epsilon_low": 0.4, "epsilon_high": 0.4}, "gmpo", {}, mean),
    ]
    for row, loss_type, their_options, name, options, aggregation in asked:
        question = {"kind": "group_relative", "name": loss_type, "options": their_options, "length": WIDTH}
        answer = policy(batch, name, options, aggregation, "sequence_advantages")
        yield Case(row, "trl", {**question, "batch": batch}, answer)
    for row, mode in ((token, "bnpo"), (total, "luspo"), (mean, "grpo"), (norm, "dr_grpo")):
        question = {"kind": "group_relative", "name": mode, "options": theirs, "length": WIDTH, "batch": batch}
        yield Case(row, "trl", question, policy(batch, "vanilla", ours, row, "sequence_advantages"))
    question = {"kind": "group_relative", "name": "bnpo", "options": {"beta": 0.3}, "length": WIDTH, "batch": batch}
    yield Case("k3", "trl", question, with_kl(batch))


def with_kl(batch: int) -> Callable[[], Numbers]:
    def answer() -> Numbers:
        read = tensors(batch)
        logprobs = read["logprobs"].requires_grad_()
        advantages = read["sequence_advantages"]
        loss, _ = policy_loss("vanilla", logprobs, read["old_logprobs"], advantages, read["mask"], clip_ratio_c=1e9)
        penalty = aggregate("token-mean", kl("k3", logprobs, read["ref_logprobs"]), read["mask"])
        return with_gradient(loss + 0.3 * penalty, logprobs)

    return answer


def trl_preference_cases(batch: int) -> Iterator[Case]:
    for row, loss_type, by_length in (("dpo", "sigmoid", False), ("dpo", "sigmoid_norm", True), ("ipo", "ipo", True)):
        question = {"kind": "preference", "name": loss_type, "beta": 0.3, "batch": batch}
        yield Case(row, "trl", question, preferred(batch, row, by_length))


def preferred(batch: int, name: str, by_length: bool) -> Callable[[], Numbers]:
    def answer() -> Numbers:
        read = tensors(batch)
        logprobs, mask = read["logprobs"].requires_grad_(), read["mask"]
        lengths = mask.sum(1) if by_length else torch.ones(ROWS)
        logps, ref_logps = (torch.where(mask, each, 0).sum(1) / lengths for each in (logprobs, read["ref_logprobs"]))
        half = ROWS // 2
        loss, _ = preference_loss(
            name,
            logps[:half],
            logps[half:],
            ref_chosen_logps=ref_logps[:half],
            ref_rejected_logps=ref_logps[half:],
            beta=0.3,
        )
        sums, ref_sums = (torch.where(mask, each, 0).sum(1) for each in (logprobs, read["ref_logprobs"]))
        _, of_sums = preference_loss(  # for every loss, TRL's metrics use sums of log-probabilities
            "dpo",
            sums[:half],
            sums[half:],
            ref_chosen_logps=ref_sums[:half],
            ref_rejected_logps=ref_sums[half:],
            beta=0.3,
        )
        return [*with_gradient(loss, logprobs), *(value.item() for value in of_sums.values())]

    return answer
