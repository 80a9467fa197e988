"""Choose the runner for a loaded model: KV is cached if logits with cached KV match a plain forward pass."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engines.torch.forward import Limits, PagedRunner, Row, Runner, Shape, WholeRunner
from agentrl.engines.torch.paged_kv import num_blocks_for
from agentrl.models.attention import UnfaithfulError, windows_of_all_layers

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Dtype -> maximum allowed difference of logits, in standard deviations of the logits; 0.2 for all other dtypes."""


@torch.inference_mode()
def choose_runner(model: PreTrainedModel, max_sequence_length: int, limits: Limits) -> tuple[Runner, bool]:
    """Return (runner, isolated). The runner caches KV if logits with cached KV match a plain forward pass.

    `isolated`: whether rows must be computed one by one, because a row's bits depend on the other rows even in steps of
    a fixed shape. This is checked only if `limits` have fixed shapes.
    """
    try:
        _check_rotary(model, max_sequence_length)
        windows = windows_of_all_layers(model)
        _check_against_plain(model, windows, min(40, max_sequence_length))
    except Exception as error:  # any failure: run the model without cached KV
        logger.warning("%s: KV is not reused, every token costs a full forward pass (%s)", type(model).__name__, error)
        return WholeRunner(model), False
    isolated = limits.decode.fixed and not _rows_are_independent(model, windows, limits, max_sequence_length)
    if isolated:
        logger.warning("%s: results depend on the other rows of a batch, so rows run one by one", type(model).__name__)
    return PagedRunner(model, windows), isolated


def _check_rotary(model: PreTrainedModel, max_sequence_length: int) -> None:
    """Refuse rotary frequencies that change with the longest sequence of a batch: cached keys would become wrong."""
    for part in model.modules():
        types = getattr(part, "rope_type", None)
        names = set(types.values()) if isinstance(types, dict) else {types}
        if names & {"dynamic", "longrope"}:
            parameters = part.config.rope_parameters
            known = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
            original = min(
                (p["original_max_position_embeddings"] for p in known if "original_max_position_embeddings" in p),
                default=part.config.max_position_embeddings,
            )
            if max_sequence_length > original:
                raise UnfaithfulError(f"its positions are rescaled beyond {original} tokens")


class _Probe:
    """Random sequences, run in one batch over a separate store.

    Args:
        lengths: length of each sequence; sequences of equal length are equal.
    """

    def __init__(self, model: PreTrainedModel, windows: Mapping[int, int | None], lengths: Sequence[int]) -> None:
        self.sequences = [random_ids(model, length) for length in lengths]
        self.runner = PagedRunner(model, windows)
        width = num_blocks_for(max(lengths))
        self._blocks = np.arange(1, 1 + width * len(lengths)).reshape(-1, width)
        self.runner.store.grow(1 + width * len(lengths))

    def prefill(self, shape: Shape, step: int) -> None:
        """Prefill all but the last two tokens, in pieces of `step` tokens."""
        pieces = [
            self._row(number, start, min(start + step, len(ids) - 2))
            for number, ids in enumerate(self.sequences)
            for start in range(0, len(ids) - 2, step)
        ]
        for first in range(0, len(pieces), shape.rows):
            self.runner.prefill(pieces[first : first + shape.rows], shape)

    def decode(self, shape: Shape, back: int) -> Tensor:
        """Logits [R, V] at the token `back` positions before the end of each sequence."""
        ends = [len(ids) - back + 1 for ids in self.sequences]
        return self.runner.decode([self._row(number, end - 1, end) for number, end in enumerate(ends)], shape)

    def _row(self, number: int, start: int, end: int) -> Row:
        return Row(self.sequences[number], start, end, self._blocks[number])


def random_ids(model: PreTrainedModel, length: int) -> list[int]:
    """Return `length` random tokens from a fixed seed."""
    vocabulary = model.get_input_embeddings().num_embeddings
    ids: list[int] = torch.randint(vocabulary, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    return ids


def _check_against_plain(model: PreTrainedModel, windows: Mapping[int, int | None], length: int) -> None:
    """Compare two sequences in one batch, prefilled in pieces and then decoded, with a plain forward pass of each."""
    probe = _Probe(model, windows, [length, max(3, length // 2)])
    free = Shape(2, length, fixed=False)
    probe.prefill(free, 7)
    ours = torch.stack([probe.decode(free, back) for back in (2, 1)], dim=1)
    inputs = [torch.tensor([ids], device=model.device) for ids in probe.sequences]
    plain = torch.stack([model(input_ids=ids, use_cache=False).logits[0, -2:] for ids in inputs])
    worst = (ours - plain).abs().max() / plain.std()
    if not worst <= TOLERANCE.get(model.dtype, 0.2):
        plainly = model.config._attn_implementation
        raise UnfaithfulError(
            f"with cached KV its logits differ from '{plainly}' attention by {worst:.1e} standard deviations"
        )


def _rows_are_independent(
    model: PreTrainedModel, windows: Mapping[int, int | None], limits: Limits, longest: int
) -> bool:
    """Whether logits stay bit-identical if longer sequences join the batch and prefill has shorter pieces."""
    found = []
    for neighbours, step in ((0, 16), (limits.decode.rows - 1, 11)):
        lengths = [min(length, longest) for length in (*range(40, 40 + neighbours), 23)]
        probe = _Probe(model, windows, lengths)
        probe.prefill(limits.prefill, step)
        found.append(torch.stack([probe.decode(limits.decode, back)[-1] for back in (2, 1)]))
    return torch.equal(*found)
