"""Compute verl's losses, aggregations and KL estimates. Runs in verl's virtual environment.

python verl_losses.py QUESTIONS     ->     JSON: for each question one list of numbers, such as a loss and its gradient
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

Batch = dict[str, torch.Tensor]


def policy(asked: dict, batch: Batch) -> list[float]:
    in_policy_loss = {key: value for key, value in asked["options"].items() if hasattr(PolicyLossConfig(), key)}
    others = {key: value for key, value in asked["options"].items() if key not in in_policy_loss}
    settings = PolicyLossConfig(loss_mode=asked["name"], **in_policy_loss)
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, policy_loss=settings, **others)
    logprobs = batch["logprobs"].requires_grad_()
    if asked["name"] == "reinforce":
        function = core_algos.compute_policy_loss_reinforce
        old = {"rollout_log_prob": batch["old_logprobs"]}
    else:
        function = core_algos.get_policy_loss_fn(asked["name"])
        old = {"old_log_prob": batch["old_logprobs"]}
    loss, _ = function(
        **old,
        log_prob=logprobs,
        advantages=batch[asked["advantages"]],
        response_mask=batch["mask"],
        loss_agg_mode=asked["aggregation"],
        config=config,
        rollout_is_weights=batch["weights"] if asked["weighed"] else None,
    )
    return with_gradient(loss, logprobs)


def aggregation(asked: dict, batch: Batch) -> list[float]:
    values = batch["logprobs"].requires_grad_()
    loss = core_algos.agg_loss(values, batch[asked["mask"]], asked["aggregation"], loss_scale_factor=asked["length"])
    return with_gradient(loss, values)


def value(asked: dict, batch: Batch) -> list[float]:
    values = batch["logprobs"].requires_grad_()
    loss, clipped = core_algos.compute_value_loss(
        values, batch["returns"], batch["old_logprobs"], batch["mask"], asked["cliprange_value"], asked["aggregation"]
    )
    return [*with_gradient(loss, values), float(clipped)]


def kl(asked: dict, batch: Batch) -> list[float]:
    logprobs = batch["logprobs"].requires_grad_()
    estimate = core_algos.kl_penalty(logprobs, batch["old_logprobs"], asked["name"])
    (gradient,) = torch.autograd.grad(estimate.sum(), logprobs)
    return [*estimate.flatten().tolist(), *gradient.flatten().tolist()]


def control(asked: dict, batch: Batch) -> list[float]:
    controller = core_algos.AdaptiveKLController(asked["init"], asked["target"], asked["horizon"])
    values = []
    for current in asked["measured"]:
        controller.update(current, asked["n_steps"])
        values.append(float(controller.value))
    return values


def with_gradient(loss: torch.Tensor, of: torch.Tensor) -> list[float]:
    (gradient,) = torch.autograd.grad(loss, of)
    return [loss.item(), *gradient.flatten().tolist()]


def tensors(batch: dict) -> Batch:
    found = {name: torch.tensor(values, dtype=torch.float64) for name, values in batch.items()}
    return {name: values.long() if name.startswith("mask") else values for name, values in found.items()}


KINDS = {"policy": policy, "aggregation": aggregation, "value": value, "kl": kl, "control": control}
questions = json.loads(Path(sys.argv[1]).read_text())
answers = [KINDS[asked["kind"]](asked, tensors(questions["batches"][asked["batch"]])) for asked in questions["asked"]]
print("\n" + json.dumps(answers))
