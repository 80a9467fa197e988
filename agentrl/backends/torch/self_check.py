"""Check, on a few samples, that two ways to run a model give the same results.

Axes: M packed tokens, N trained tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from agentrl.backends.torch.layout import PackedTokens
from agentrl.models.attention import UnfaithfulError
from agentrl.types.sample import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNSUPPORTED_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError)
"""Errors that a model may raise when it runs in an unsupported way."""


LONGEST = 17
"""Number of tokens of the longest probe sample at scale 1."""


def probe_samples(vocab_size: int, scale: int = 1) -> list[Sample]:
    """Make five samples that test prefix sharing. All lengths are multiplied by `scale`.

    The first four samples share a prompt. The third branches off in the middle of the first sample's response. The
    fourth has (at any scale) a single trained token. The fifth has another prompt.
    """

    def numbers(first: int, end: int) -> range:
        return range(scale * first, scale * end)

    owns = [[*numbers(50, 57)], [*numbers(90, 94)], [*numbers(50, 53), *numbers(70, 75)], [99 * scale]]
    parts = [*((numbers(0, 9), own) for own in owns), (numbers(3, 8), numbers(0, 8))]
    samples = []
    for prompt, own in parts:
        token_ids = [number * 7 % vocab_size for number in (*prompt, *own)]
        loss_mask = [0] * len(prompt) + [1] * len(own)
        samples.append(Sample(token_ids, loss_mask, [1.0] * len(token_ids), [0.0] * len(token_ids)))
    return samples


@contextmanager
def unfaithful() -> Iterator[None]:
    """Raise a model's errors as UnfaithfulError, except out-of-memory errors, which are unrelated."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except UNSUPPORTED_ERRORS as error:
        first, *_ = [*str(error).splitlines(), ""]
        raise UnfaithfulError(f"{type(error).__name__}: {first}") from error


def difference(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference, divided by the root mean square of `expected`."""
    if actual.shape != expected.shape:
        raise UnfaithfulError(f"logits of shape {tuple(actual.shape)}, not {tuple(expected.shape)}")
    return float((actual - expected).float().norm() / expected.float().norm())


def tolerance(padded: Tensor, alone: Tensor) -> float:
    """Largest accepted rounding difference of logits, based on how padding changes the model's results.

    On a GPU, results differ more between input shapes: by 1.4e-5 for a Gemma 2 in float32.
    """
    rounding = max(8 * torch.finfo(alone.dtype).eps, 1e-5 if alone.device.type == "cpu" else 1e-4)
    return min(max(rounding, 4 * difference(padded, alone)), max(1e-3, rounding))


@contextmanager
def watched_embeddings(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Collect the embeddings of each forward pass inside the block, as leaf tensors that collect gradients."""
    leaves: list[Tensor] = []

    def watch(module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()  # a model may modify its input in place, which is not allowed for a leaf

    handle = model.get_input_embeddings().register_forward_hook(watch)
    try:
        yield leaves
    finally:
        handle.remove()


def check_apart(
    states_NH: Tensor, chosen_N: Tensor, embeddings_1MH: Tensor, sample: Sample, tokens: PackedTokens
) -> None:
    """Check that a sample's states depend only on that sample's tokens.

    The gradient with respect to all other tokens must be exactly 0. So even small errors are found, also in bfloat16
    and with weights near 0.

    Args:
        chosen_N: [N] bool, whether each state belongs to the sample.

    Raises:
        UnfaithfulError: the sample attends to another sample's tokens.
    """
    weights_NH = torch.sin(torch.arange(states_NH.numel(), device=states_NH.device)).view_as(states_NH)
    # weighted, because the outputs of a norm may sum to a constant
    value = (states_NH[chosen_N] * weights_NH[chosen_N]).sum()
    (gradient_1MH,) = torch.autograd.grad(value, embeddings_1MH)
    seen = gradient_1MH[0].ne(0).any(dim=-1).cpu()
    own = dict(enumerate(sample.token_ids))
    if any(own.get(position) != token for position, token in _tokens_of(tokens, seen)):
        raise UnfaithfulError("a sample would attend to tokens of other samples")


def _tokens_of(tokens: PackedTokens, seen: Tensor) -> Iterator[tuple[int, int]]:
    """Yield (position, token) of each token where `seen` is true."""
    return zip(tokens.positions.cpu()[seen].tolist(), tokens.token_ids.cpu()[seen].tolist(), strict=True)
