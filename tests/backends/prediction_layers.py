"""Models with layers for multi-token prediction, and these layers in plain torch on top of transformers' modules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_model
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.types.sample import Sample

NUM_LAYERS = 2
"""Layers of a model, without the layers for multi-token prediction."""


class Ahead(nn.Module):
    """One layer, under the names of the hub: the last layer of a deeper model, and the modules around it."""

    def __init__(self, model: PreTrainedModel, layer: nn.Module) -> None:
        super().__init__()
        size, norm = model.config.hidden_size, type(model.model.norm)
        self.enorm, self.hnorm = (norm(size, model.config.rms_norm_eps) for _ in range(2))
        self.shared_head = nn.ModuleDict({"norm": norm(size, model.config.rms_norm_eps)})
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.layer = layer

    def forward(self, model: PreTrainedModel, tokens_T: Tensor, states_TH: Tensor) -> Tensor:
        """The states from which the head predicts; `tokens_T`: for each state, the token that is known as well."""
        embeddings_TH = model.model.embed_tokens(tokens_T).detach()
        joined_1TH = self.eh_proj(torch.cat([self.enorm(embeddings_TH), self.hnorm(states_TH)], -1))[None]
        positions = torch.arange(len(tokens_T))[None]
        rotary = model.model.rotary_emb(joined_1TH, positions)
        found = self.layer(joined_1TH, position_embeddings=rotary, position_ids=positions)
        return self.shared_head["norm"](found[0] if isinstance(found, Tensor) else found[0][0])


def save_with_layers(
    folder: Path,
    family: str = "deepseek_v3",
    number: int = 1,
    dtype: torch.dtype = torch.float32,
    **options: object,
) -> list[Ahead]:
    """Save a model with random layers for multi-token prediction, as its model on the hub has them; return these."""
    num_layers = int(options.pop("num_hidden_layers", NUM_LAYERS))
    deep = make_model(family, num_hidden_layers=num_layers + number, **options)
    layers = [Ahead(deep, deep.model.layers[num_layers + index]) for index in range(number)]
    with torch.no_grad():
        for layer in layers:
            for value in layer.parameters():
                if value.ndim == 1:
                    value.add_(torch.randn(value.shape) / 4)
            layer.eh_proj.weight.mul_(4)
            bias = layer.layer.mlp.gate.e_score_correction_bias
            bias.copy_(torch.randn(bias.shape) / 10)
    deep.to(dtype).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for index, layer in enumerate(layers):
        prefix = f"model.layers.{num_layers + index}."
        own = {name: value for name, value in layer.state_dict().items() if not name.startswith("layer.")}
        own |= {"embed_tokens.weight": weights["model.embed_tokens.weight"].clone()}
        own |= {"shared_head.head.weight": weights["lm_head.weight"].clone()}
        weights |= {f"{prefix}{name}": value.to(dtype).contiguous() for name, value in own.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    changes = {"num_hidden_layers": num_layers, "num_nextn_predict_layers": number}
    (folder / "config.json").write_text(json.dumps(config | changes))
    return layers


def loaded_layers(folder: Path, family: str) -> list[Ahead]:
    """The layers that `save_with_layers` or a backend saved."""
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    first, number = config["num_hidden_layers"], config["num_nextn_predict_layers"]
    (folder / "deep").mkdir()
    (folder / "deep/config.json").write_text(json.dumps(config | {"num_hidden_layers": first + number}))
    save_file(weights, folder / "deep/model.safetensors", metadata={"format": "pt"})
    deep = AutoModelForCausalLM.from_pretrained(folder / "deep")
    found = [Ahead(deep, deep.model.layers[first + index]) for index in range(number)]
    for index, layer in enumerate(found):
        prefix = f"model.layers.{first + index}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        layer.load_state_dict(own, strict=False)
    return found


def prediction_loss(model: PreTrainedModel, layers: Sequence[Ahead], samples: Sequence[Sample]) -> Tensor:
    """The mean over layers of the mean cross entropy of the trained tokens that a layer predicts."""
    sums, counts = [torch.zeros(()) for _ in layers], [0 for _ in layers]
    for sample in samples:
        tokens_T, mask_T = torch.tensor(sample.token_ids), torch.tensor(sample.loss_mask, dtype=torch.bool)
        states_TH = model.model(tokens_T[None]).last_hidden_state[0].detach()
        for index, layer in enumerate(layers):
            known_T, start = tokens_T[index + 1 :], index + 2
            states_TH = layer(model, known_T, states_TH[: len(known_T)])
            logits_TV = linear(states_TH[:-1], model.lm_head.weight.detach())
            losses_T = nn.functional.cross_entropy(logits_TV, tokens_T[start:], reduction="none")
            sums[index] = sums[index] + losses_T[mask_T[start:]].sum()
            counts[index] += int(mask_T[start:].sum())
    return torch.stack([total / count for total, count in zip(sums, counts, strict=True)]).mean()


def names_of(layer: Ahead, number: int) -> dict[str, nn.Parameter]:
    """The parameters of a layer under their names in memory."""
    found = {name.removeprefix("layer."): value for name, value in layer.named_parameters()}
    return {f"model.layers.{number}.{name}": value for name, value in found.items()}
