"""Log-probabilities of every model family equal a plain transformers forward on one sample at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import FAMILIES, make_groups, make_model, make_samples

from agentrl.backends.torch import heads, logprobs
from agentrl.backends.torch.batches import micro_batch
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.logprobs import token_logprobs
from agentrl.types.sample import Sample

CPU = torch.device("cpu")


@torch.no_grad()
def reference(model, sample: Sample) -> tuple[list[float], list[float]]:
    """Full logits of one unpadded sample; log-softmax in float64."""
    logits = model(input_ids=torch.tensor([sample.token_ids])).logits[0].double()
    positions = [index for index, trained in enumerate(sample.loss_mask) if trained]
    rows = [(logits[index - 1] / sample.temperatures[index]).log_softmax(0) for index in positions]
    expected = [row[sample.token_ids[index]].item() for row, index in zip(rows, positions, strict=True)]
    return expected, [-(row.exp() * row).sum().item() for row in rows]


def run(positionwise: PositionwiseModel, samples: list[Sample], *, entropy_gradient: bool = False):
    batch = micro_batch(samples, CPU)
    with positionwise.running():
        return token_logprobs(
            positionwise.features,
            positionwise.states(batch),
            batch.targets,
            batch.temperatures,
            positionwise.vocab_size,
            entropy_gradient=entropy_gradient,
        )


def check(positionwise: PositionwiseModel, tolerance: float = 2e-5) -> None:
    samples = [*make_samples(5), *make_groups()]
    with torch.no_grad():
        actual_logprobs, actual_entropy = run(positionwise, samples)
    expected = [reference(positionwise.model, sample) for sample in samples]
    expected_logprobs = torch.tensor([value for values, _ in expected for value in values])
    expected_entropy = torch.tensor([value for _, values in expected for value in values])
    torch.testing.assert_close(actual_logprobs, expected_logprobs, rtol=0, atol=tolerance)
    torch.testing.assert_close(actual_entropy, expected_entropy, rtol=0, atol=tolerance)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_plain_transformers(family: str):
    """Uses padded rows; test_torch_shared_prefixes.py tests the other layouts."""
    positionwise = PositionwiseModel(make_model(family), share_prefixes=False)
    # OPT's head needs the model body, so logits are computed for all positions
    assert positionwise.splits == (family != "opt")
    check(positionwise)


def test_head_split_with_different_logits_is_not_used(monkeypatch: pytest.MonkeyPatch):
    model = make_model("cohere")  # its logits are scaled after the head
    states = lambda self, *_, inputs_embeds, **__: heads._States(last_hidden_state=inputs_embeds * 1.01)  # noqa: E731
    monkeypatch.setattr(heads._GivenStates, "forward", states)
    assert not PositionwiseModel(model, share_prefixes=False).splits


def test_only_chosen_positions_reach_the_head():
    positionwise = PositionwiseModel(make_model(), share_prefixes=True)
    samples = make_samples(5)
    sizes = []
    positionwise.model.lm_head.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape))
    run(positionwise, samples)
    assert sizes == [(1, sum(sample.num_trained_tokens for sample in samples), positionwise.vocab_size)]


@pytest.mark.slow
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_chunks_change_neither_values_nor_gradients(entropy_gradient: bool, monkeypatch: pytest.MonkeyPatch):
    def values_and_gradients() -> list[torch.Tensor]:
        model = make_model("gemma2").double()
        positionwise = PositionwiseModel(model, share_prefixes=True)
        logprobs_N, entropy_N = run(positionwise, make_samples(4), entropy_gradient=entropy_gradient)
        assert entropy_N.requires_grad == entropy_gradient
        (logprobs_N.sum() + 0.3 * entropy_N.sum()).backward()
        return [logprobs_N.detach(), entropy_N.detach(), *(value.grad for value in model.parameters())]

    whole = values_and_gradients()
    monkeypatch.setattr(logprobs, "MAX_LOGITS", 5 * 61)
    for expected, actual in zip(whole, values_and_gradients(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_temperature_0_counts_as_1_and_so_does_none(monkeypatch: pytest.MonkeyPatch):
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([1, 2, 3])
    temperatures = (torch.ones(3), torch.zeros(3), None)
    for max_logits in (logprobs.MAX_LOGITS, 14):
        monkeypatch.setattr(logprobs, "MAX_LOGITS", max_logits)
        found = [token_logprobs(lambda x: x, logits, targets, t, 7, entropy_gradient=False)[0] for t in temperatures]
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


def test_temperatures_of_1_are_omitted():
    sample = Sample([1, 2, 3], [0, 1, 1], [0.5, 1.0, 1.0], [0.0] * 3)  # the first token is never trained
    assert micro_batch([sample], CPU).temperatures is None
    assert micro_batch([sample, replace(sample, temperatures=[1.0, 1.0, 0.7])], CPU).temperatures is not None


def test_a_trained_first_token_is_refused():
    with pytest.raises(ValueError, match="nothing predicts"):
        micro_batch([Sample([1, 2], [1, 1], [1.0, 1.0], [1.0, 1.0])], CPU)
