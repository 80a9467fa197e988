"""The experts that transformers' routers choose, computed from their logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from agentrl.backends.packing import used_tokens
from agentrl.types.sample import Sample


@torch.no_grad()
def choices(model: PreTrainedModel, samples: Sequence[Sample]) -> list[Tensor]:
    """Experts of each sample's computed tokens, [T', layers, top k] in ascending order; 0 in dense layers."""
    config, logits = model.config, {}
    gates = {
        number: layer.mlp.gate for number, layer in enumerate(model.base_model.layers) if hasattr(layer.mlp, "gate")
    }

    def keep(number: int):
        def hook(module, inputs, output) -> None:
            logits[number] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [gate.register_forward_hook(keep(number)) for number, gate in gates.items()]
    found = []
    for sample in samples:
        token_ids = torch.from_numpy(used_tokens(sample))[None].to(model.device)
        model(input_ids=token_ids, use_cache=False)
        experts = torch.zeros(
            token_ids.shape[1], config.num_hidden_layers, config.num_experts_per_tok, dtype=torch.long
        )
        for number, gate in gates.items():
            experts[:, number] = _best(config, gate, logits[number].float().view(token_ids.shape[1], -1)).cpu()
        found.append(in_order(experts))
    for handle in handles:
        handle.remove()
    return found


def in_order(experts: Tensor) -> Tensor:
    return experts.long().sort(-1).values


def _best(config: PretrainedConfig, gate: nn.Module, logits_TE: Tensor) -> Tensor:
    """Softmax scores as in Qwen3-MoE, or DeepSeek-V3's biased sigmoid scores within the best groups of experts."""
    if not hasattr(gate, "e_score_correction_bias"):
        return logits_TE.topk(config.num_experts_per_tok).indices
    scores = (logits_TE.sigmoid() + gate.e_score_correction_bias).unflatten(1, (config.n_group, -1))
    groups = scores.topk(2).values.sum(-1).topk(config.topk_group).indices
    kept = torch.zeros(scores.shape[:2]).to(scores.device).scatter_(1, groups, 1).bool()[:, :, None]
    return scores.masked_fill(~kept, -torch.inf).flatten(1).topk(config.num_experts_per_tok).indices
