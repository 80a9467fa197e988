"""Compute the losses of TRL's trainers for given log-probabilities. Runs in TRL's virtual environment.

    python trl_losses.py QUESTIONS     ->     JSON: for each question one list with the loss and its gradient

A trainer's `_compute_loss` is called with a stub instead of the trainer. The stub holds the settings and replaces the
model. The loss itself is TRL's code. For DPO, the list also has the metrics of the rewards.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from trl import DPOTrainer, GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

Batch = dict[str, torch.Tensor]
ACCELERATOR = SimpleNamespace(
    num_processes=1,
    device="cpu",
    sync_gradients=True,
    gather=lambda values: values,
    gather_for_metrics=lambda values: values,
    reduce=lambda values, reduction: values,
)
SHARED = {
    "accelerator": ACCELERATOR,
    "model": SimpleNamespace(training=True),
    "aux_loss_enabled": False,
    "_metrics": {"train": defaultdict(list)},
}


def group_relative(asked: dict, batch: Batch) -> list[float]:
    """Return loss and gradient of GRPOTrainer or GMPOTrainer, which have one advantage per sequence."""
    options, mask = asked["options"], batch["mask"]
    logprobs = batch["logprobs"].requires_grad_()
    trainer = SimpleNamespace(
        **SHARED,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        _entropy_bonus_enabled=False,
        args=SimpleNamespace(
            delta=options.get("delta"),
            use_bias_correction_kl=False,
            sapo_temperature_pos=options.get("tau_pos"),
            sapo_temperature_neg=options.get("tau_neg"),
            steps_per_generation=1,
        ),
        beta=options.get("beta", 0.0),
        current_gradient_accumulation_steps=1,
        epsilon_high=options.get("epsilon_high", 0.2),
        epsilon_low=options.get("epsilon_low", 0.2),
        importance_sampling_level=options.get("level", "token"),
        loss_type=asked["name"],
        max_completion_length=asked["length"],
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1),
        "prompt_mask": torch.ones(len(mask), 1),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": torch.ones_like(mask),
        "tool_mask": mask,
        "advantages": batch["sequence_advantages"][:, 0],
        "old_per_token_logps": batch["old_logprobs"],
        "ref_per_token_logps": batch["ref_logprobs"],
        "num_items_in_batch": mask.sum(),
    }
    function = GMPOTrainer._compute_loss if asked["name"] == "gmpo" else GRPOTrainer._compute_loss
    return with_gradient(function(trainer, None, inputs), logprobs)


def preference(asked: dict, batch: Batch) -> list[float]:
    """Return loss, gradient and metrics of DPOTrainer; the first half of the rows are chosen, the others rejected."""
    logprobs, mask = batch["logprobs"].requires_grad_(), batch["mask"]
    nothing = torch.zeros_like(logprobs)

    def model(**_: object) -> SimpleNamespace:
        found = {"entropy": nothing, "mean_logits": nothing, "is_top1": nothing.bool()}
        return SimpleNamespace(log_probs=logprobs * mask, **found)

    reference = (batch["ref_logprobs"] * mask).sum(1)
    trainer = SimpleNamespace(
        **SHARED,
        beta=asked["beta"],
        f_divergence_type="reverse_kl",
        label_smoothing=0.0,
        ld_alpha=None,
        loss_types=[asked["name"]],
        loss_weights=[1.0],
        precompute_ref_logps=True,
        use_weighting=False,
        _total_train_tokens=0,
        _tp_size=1,
    )
    trainer._metrics["train"].clear()
    first = torch.zeros(len(mask), 1, dtype=mask.dtype)
    inputs = {
        "input_ids": torch.zeros(len(mask), mask.shape[1] + 1, dtype=torch.long),
        "attention_mask": torch.ones(len(mask), mask.shape[1] + 1),
        "completion_mask": torch.cat([first, mask], dim=1),
        "ref_chosen_logps": reference[: len(mask) // 2],
        "ref_rejected_logps": reference[len(mask) // 2 :],
    }
    answer = with_gradient(DPOTrainer._compute_loss(trainer, model, inputs, False), logprobs)
    metrics = ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies")
    return [*answer, *(trainer._metrics["train"][name][0] for name in metrics)]


def with_gradient(loss: torch.Tensor, of: torch.Tensor) -> list[float]:
    (gradient,) = torch.autograd.grad(loss, of)
    return [loss.item(), *gradient.flatten().tolist()]


def tensors(batch: dict) -> Batch:
    found = {name: torch.tensor(values, dtype=torch.float64) for name, values in batch.items()}
    return {name: values.long() if name.startswith("mask") else values for name, values in found.items()}


KINDS = {"group_relative": group_relative, "preference": preference}
questions = json.loads(Path(sys.argv[1]).read_text())
answers = [KINDS[asked["kind"]](asked, tensors(questions["batches"][asked["batch"]])) for asked in questions["asked"]]
print("\n" + json.dumps(answers))
