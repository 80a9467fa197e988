"""Map each parameter of megatron-core on this process to the parts of Hugging Face weights that it holds.

Every parameter consists of parts. Each part is a box of one checkpoint weight: a range in each dimension. So weights,
gradients and optimizer state are read and written part by part, and no process needs a complete weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from megatron.core import parallel_state
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from agentrl.backends.megatron.architecture.balancing import expert_biases
from agentrl.backends.megatron.architecture.hybrid import layer_of
from agentrl.backends.megatron.architecture.prediction import PREFIX

Box = tuple[tuple[int, int], ...]
"""(start, length) in each dimension of a complete weight."""


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a complete weight.

    Attributes:
        name: name of the weight in a checkpoint, or in memory (`in_memory`).
        shape: shape of the complete weight.
        box: where the part is in the complete weight.
        view: returns the values of the part, as a view of a tensor with the parameter's shape. The values are in the
            order of the box, but their shape may differ from the shape of the box.
        is_first: whether this process is the first of the processes with the same part.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    view: Callable[[Tensor], Tensor]
    is_first: bool


@dataclass(frozen=True, slots=True)
class Mapped:
    """A parameter (or a buffer that checkpoints contain), with its parts."""

    name: str
    value: Tensor
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Rows:
    """View of consecutive rows of a tensor."""

    start: int
    stop: int

    def __call__(self, value: Tensor) -> Tensor:
        """Return these rows of `value`."""
        return value[self.start : self.stop]


SCALAR_HEAD = "output_layer.score."
"""Prefix of the parameter names of a head that outputs one number."""


def mapped(chunk: LanguageModule, vocabulary_size: int, prefix: str = "") -> Iterator[Mapped]:
    """Yield the parameters of a chunk whose names in the complete model start with `prefix`."""
    for name, complete_name, value in held(chunk):
        if not complete_name.startswith(prefix):
            continue
        own = _Parameter(_short(complete_name, chunk), value, chunk.config, vocabulary_size)
        yield Mapped(name, value, own.parts(tied=chunk.share_embeddings_and_output_weights))


def _short(name: str, chunk: LanguageModule) -> str:
    """Return a name in the complete model without the module names that checkpoint names do not contain."""
    name = name.removeprefix("decoder.").replace("local_experts.", "")
    if not (found := _AHEAD.match(name)):
        return name
    return f"layers.{chunk.mtp.config.num_layers + int(found[1])}.{name[found.end() :]}"


def held(chunk: LanguageModule) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (name in the chunk, name in the complete model, value) for each parameter and expert bias of a chunk."""
    for name, value in [*chunk.named_parameters(), *expert_biases(chunk)]:
        yield name, _numbered(name, chunk), value


def _numbered(name: str, chunk: LanguageModule) -> str:
    """Return a parameter's name in a `GPTModel`, with the numbers of layer and expert in the complete model."""
    config, layers = chunk.config, chunk.decoder.layers
    name = name.replace("decoder.final_norm.", "decoder.final_layernorm.")
    prefix = r"^decoder\.layers\.(\d+)"
    name = re.sub(prefix, lambda found: f"decoder.layers.{layer_of(layers[int(found[1])], chunk)}", name)
    if ".local_experts." in name:
        each = config.num_moe_experts // config.expert_model_parallel_size
        first = parallel_state.get_expert_model_parallel_rank() * each
        name = re.sub(r"(?<=local_experts\.)\d+", lambda found: str(int(found[0]) + first), name)
    return name


_AHEAD = re.compile(rf"{re.escape(PREFIX)}layers\.(\d+)\.(mtp_model_layer\.)?")
_OUTSIDE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "final_layernorm.weight": "model.norm.weight",
    "output_layer.score.weight": "score.weight",
    "output_layer.score.bias": "score.bias",
}
_INSIDE = {
    "input_layernorm": "input_layernorm",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "self_attention.linear_proj": "self_attn.o_proj",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
    "self_attention.linear_q_proj": "self_attn.q_proj",
    "self_attention.linear_q_down_proj": "self_attn.q_a_proj",
    "self_attention.linear_q_up_proj": "self_attn.q_b_proj",
    "self_attention.linear_kv_down_proj": "self_attn.kv_a_proj_with_mqa",
    "self_attention.linear_kv_up_proj": "self_attn.kv_b_proj",
    "self_attention.kv_layernorm": "self_attn.kv_a_layernorm",
    "mlp.linear_fc2": "mlp.down_proj",
    "mlp.shared_experts.linear_fc2": "mlp.shared_experts.down_proj",
    "mlp.router": "mlp.gate",
    "enorm": "enorm",  # of the layers for multi-token prediction
    "hnorm": "hnorm",
    "eh_proj": "eh_proj",
    "final_layernorm": "shared_head.norm",
}
_GATED = re.compile(r"(mlp|mlp\.shared_experts|mlp\.experts\.\d+)\.linear_fc1")
_EXPERT_OUTPUT = re.compile(r"(mlp\.experts\.\d+)\.linear_fc2")


class Placement:
    """Place of this process among the processes that have a part or a copy of the same parameter.

    Attributes:
        rank: number of this process among the tensor-parallel processes that share the layer.
        size: number of processes that share the layer.
        is_divided: whether each process has a different part of the parameter; else all have the complete parameter.
        is_first: whether this process is the first of the processes with the same part.
    """

    def __init__(self, name: str, value: Tensor) -> None:
        if ".experts." in name:
            group, copy = parallel_state.get_expert_tensor_parallel_group(), _copy_of_experts()
        else:
            group, copy = parallel_state.get_tensor_model_parallel_group(), _copy_of_others()
        self.rank, self.size = group.rank(), group.size()
        self.is_divided = bool(getattr(value, "tensor_model_parallel", False)) and self.size > 1
        self.is_first = copy == 0 and (self.is_divided or self.rank == 0)


def _copy_of_experts() -> int:
    return int(parallel_state.get_expert_data_parallel_rank())


def _copy_of_others() -> int:
    return int(parallel_state.get_data_parallel_rank(with_context_parallel=True))


class _Parameter:
    """One parameter of this process, under its name in the complete model; see `_short`."""

    def __init__(self, name: str, value: Tensor, config: TransformerConfig, vocabulary_size: int) -> None:
        self._name, self._value, self._config, self._vocabulary_size = name, value, config, vocabulary_size
        self._placement = Placement(name, value)
        self._rank, self._size, self._is_first = self._placement.rank, self._placement.size, self._placement.is_first

    def parts(self, *, tied: bool) -> list[Part]:
        """Return the parts of this parameter; `tied`: whether the head uses the weight of the embedding."""
        if (outside := _OUTSIDE.get(self._name)) is not None:
            if outside.startswith(("model.norm", "score")):
                return [self._part(outside, lambda value: value)]
            if tied and self._name.startswith("output_layer"):  # a copy on the last pipeline stage
                return [
                    replace(part, is_first=False) for part in self._rows(_OUTSIDE["embedding.word_embeddings.weight"])
                ]
            return self._rows(outside)
        _, layer, inner = self._name.split(".", 2)
        return self._of_layer(f"model.layers.{layer}.", inner)

    def _of_layer(self, layer: str, name: str) -> list[Part]:
        module, _, kind = name.rpartition(".")
        if kind == "expert_bias":
            return [self._part(f"{layer}mlp.gate.e_score_correction_bias", lambda value: value)]
        if module == "self_attention.linear_qkv":
            return self._queries_keys_values(f"{layer}self_attn.", kind)
        if found := _GATED.fullmatch(module):
            return self._gate_and_up(f"{layer}{found[1]}.")
        if found := _EXPERT_OUTPUT.fullmatch(module):
            return [self._part(f"{layer}{found[1]}.down_proj.{kind}", lambda value: value)]
        if module == "self_attention.q_layernorm" and self._config.multi_latent_attention:
            return [self._part(f"{layer}self_attn.q_a_layernorm.{kind}", lambda value: value)]
        return [self._part(f"{layer}{_INSIDE[module]}.{kind}", lambda value: value)]

    def _part(self, name: str, view: Callable[[Tensor], Tensor], *, dim: int | None = None) -> Part:
        """Return the part that `view` selects; `dim`: the dimension that tensor-parallel processes may divide."""
        shape = [*view(self._value).shape]
        box = [(0, length) for length in shape]
        if self._placement.is_divided:
            dim = self._value.partition_dim if dim is None else dim  # type: ignore[attr-defined]  # set by megatron-core
            box[dim] = (self._rank * shape[dim], shape[dim])
            shape[dim] *= self._size
        return Part(name, tuple(shape), tuple(box), view, self._is_first)

    def _rows(self, name: str) -> list[Part]:
        """Return the parts of an embedding or head, without the rows that pad the vocabulary."""
        first = self._rank * len(self._value)
        own = min(len(self._value), self._vocabulary_size - first)
        width = self._value.shape[1]
        box = ((first, own), (0, width))
        return [Part(name, (self._vocabulary_size, width), box, lambda value: value[:own], self._is_first)]

    def _gate_and_up(self, module: str) -> list[Part]:
        half = len(self._value) // 2
        return [
            self._part(f"{module}gate_proj.weight", lambda value: value[:half], dim=0),
            self._part(f"{module}up_proj.weight", lambda value: value[half:], dim=0),
        ]

    def _queries_keys_values(self, module: str, kind: str) -> list[Part]:
        """Split joint rows, which are ordered by group of heads: in each group first queries, then key, then value."""
        dim = self._config.kv_channels
        queries = self._config.num_attention_heads // self._config.num_query_groups * dim
        bounds = {"q": (0, queries), "k": (queries, queries + dim), "v": (queries + dim, queries + 2 * dim)}
        return [self._group_rows(f"{module}{name}_proj.{kind}", *rows) for name, rows in bounds.items()]

    def _group_rows(self, name: str, start: int, stop: int) -> Part:
        dim = self._config.kv_channels
        width = (self._config.num_attention_heads // self._config.num_query_groups + 2) * dim
        num_rows = len(self._value) // width * (stop - start)
        rest = tuple(self._value.shape[1:])
        box = ((self._rank * num_rows, num_rows), *((0, length) for length in rest))
        shape = (self._size * num_rows, *rest)
        return Part(name, shape, box, lambda value: value.view(-1, width, *rest)[:, start:stop], self._is_first)


_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def memory_name(name: str) -> str:
    """Return the name in memory of a checkpoint weight; in memory, transformers stacks the experts."""
    if not (found := _EXPERT.fullmatch(name)):
        return name
    return f"{found[1]}.down_proj" if found[3] == "down" else f"{found[1]}.gate_up_proj"


def in_memory(part: Part, num_experts: int) -> Part:
    """Return a part of a checkpoint weight as a part of the weight in memory, see `memory_name`."""
    if not (found := _EXPERT.fullmatch(part.name)):
        return part
    rows, columns = part.shape
    (first, length), others = part.box
    if found[3] == "up":
        first += rows
    height = rows if found[3] == "down" else 2 * rows
    box = ((int(found[2]), 1), (first, length), others)
    return replace(part, name=memory_name(part.name), shape=(num_experts, height, columns), box=box)


def write_to(part: Part, parameter: Tensor, value: Tensor) -> None:
    """Copy the values of a part into its parameter."""
    with torch.no_grad():
        target = part.view(parameter)
        target.copy_(value.reshape(target.shape))
