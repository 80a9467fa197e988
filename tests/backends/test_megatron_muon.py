"""Muon in a parallel layout gives the updates of the torch backend's Muon."""

from __future__ import annotations

import asyncio

import pytest
import torch
from megatron_models import in_one_process, make_request
from test_megatron import LAYOUTS_OF_STEPS, OTHER_LAYOUTS
from tiny_models import make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss

pytestmark = pytest.mark.megatron

LOSS = PolicyLoss("vanilla")
MUON = {"name": "muon", "lr": 1e-2, "muon_lr": 2e-2, "eps": 1e-3, "weight_decay": 0.1}


def moves(backend, samples) -> dict[str, torch.Tensor]:
    before = {name: value.clone() for name, value in backend.weights()}
    asyncio.run(backend.train_step(samples, LOSS))
    return {name: value - before[name] for name, value in backend.weights()}


def orthogonalised(grad, ns_coefficients, ns_steps, eps):
    """Torch's Newton-Schulz iteration in float32; torch itself and megatron-core use bfloat16."""
    a, b, c = ns_coefficients
    x = grad / grad.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.one_in(4)
@pytest.mark.parametrize("layout", LAYOUTS_OF_STEPS)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "deepseek_v3"])
def test_updates_are_those_of_torch(start, tmp_path, monkeypatch, family, layout):
    """The distance to the update in float32 is that of torch, which also computes in bfloat16: a few percent.

    Another treatment of a matrix, or of a part of it, differs by more than 30%.
    """
    layout = layout.replace("ep2", "dp") if family == "qwen3" else layout
    request = make_request(save_model(tmp_path, family), layout, optim=MUON)
    backend, alone, exact = start(request), in_one_process(request), in_one_process(request)
    for step in range(2):
        found, torchs = (moves(each, make_samples(7, step)) for each in (backend, alone))
        with monkeypatch.context() as patch:
            patch.setattr("torch.optim._muon._zeropower_via_newtonschulz", orthogonalised)
            expected = moves(exact, make_samples(7, step))
        for name, move in expected.items():
            is_muons = move.ndim == 2 and "embed" not in name and "lm_head" not in name
            bound = 2 * (torchs[name] - move).norm() + (0.03 if is_muons else 1e-4) * move.norm()
            assert (found[name] - move).norm() <= bound + 1e-9, (step, name)
        for each in (backend, alone):  # differences must not grow
            asyncio.run(each.copy_weights(exact.weights()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_resumes_exactly_and_in_every_layout(start, tmp_path, dtype):
    path = save_model(tmp_path / "model", "qwen3_moe", dtype)
    first = start(make_request(path, OTHER_LAYOUTS[-1], optim=MUON))
    asyncio.run(first.train_step(make_samples(4), LOSS))
    asyncio.run(first.save(tmp_path / "saved"))
    expected = asyncio.run(first.train_step(make_samples(4, 1), LOSS)).metrics
    weights = dict(first.weights())
    asyncio.run(first.close())  # the next has another layout
    for layout in OTHER_LAYOUTS[::-1]:
        other = start(make_request(path, layout, optim=MUON), seed=1)
        asyncio.run(other.load(tmp_path / "saved"))
        found = asyncio.run(other.train_step(make_samples(4, 1), LOSS)).metrics
        exact = layout == OTHER_LAYOUTS[-1]
        assert found == expected if exact else found["loss"] == pytest.approx(expected["loss"], rel=2e-2, abs=1e-3)
        for name, value in other.weights():
            if exact:
                assert torch.equal(value, weights[name]), name
            else:
                torch.testing.assert_close(value, weights[name], rtol=2e-2, atol=5e-3)
        asyncio.run(other.close())
