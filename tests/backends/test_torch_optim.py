from __future__ import annotations

import pytest
import torch
from tiny_models import make_model

from agentrl.backends.torch.optim import ScheduledOptimizer
from agentrl.config.actor import OptimConfig
from agentrl.errors import ConfigError


def with_gradients(family: str = "llama"):
    model = make_model(family)
    generator = torch.Generator().manual_seed(1)
    for value in model.parameters():
        value.grad = torch.randn(value.shape, generator=generator)
    return model


def optimizer_for(model, **changes: object) -> ScheduledOptimizer:
    return ScheduledOptimizer(model, OptimConfig(**changes), grad_clip=1e9, total_updates=10)


def test_adamw_equals_the_formula_and_spares_vectors_from_decay():
    model = with_gradients()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    gradient = {name: value.grad.clone() for name, value in model.named_parameters()}
    optimizer_for(model, lr=0.1, eps=0.01, weight_decay=0.5).step()
    for name, value in model.named_parameters():
        # after one update the bias-corrected averages are g and g^2
        decayed = before[name] * (1 - 0.1 * 0.5 * (value.ndim >= 2))
        expected = decayed - 0.1 * gradient[name] / (gradient[name].abs() + 0.01)
        torch.testing.assert_close(value.detach(), expected, msg=name)
        assert value.grad is None


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "qwen3"])
def test_muon_orthogonalises_hidden_matrices_only(family: str):
    model = with_gradients(family)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer_for(model, name="muon", lr=1e-3, muon_lr=1.0, weight_decay=0.0).step()
    for name, value in model.named_parameters():
        move = value.detach() - before[name]
        if value.ndim == 2 and not any(part in name for part in ("embed", "lm_head")):
            scale = max(1, value.shape[0] / value.shape[1]) ** 0.5
            singular = torch.linalg.svdvals(move.double()) / scale
            # Newton-Schulz gives singular values near 1, not exactly 1
            assert 0.6 < singular.median() <= singular.max() < 1.3, name
        else:
            assert move.abs().max() < 1.1e-3, name


def test_learning_rate_counts_updates_made():
    model = with_gradients()
    optimizer = optimizer_for(model, lr=1.0, lr_warmup_steps=4)
    assert optimizer.step()["lr"] == 0.25
    model.get_output_embeddings().weight.grad = torch.full_like(model.get_output_embeddings().weight, float("nan"))
    skipped = optimizer.step()
    assert (skipped["lr"], skipped["skipped_updates"], optimizer.num_updates) == (0.5, 1, 1)


def test_state_of_another_optimizer_is_refused():
    state = optimizer_for(with_gradients(), name="muon").state_dict()
    with pytest.raises(ConfigError, match=r"optim\.name 'adamw' does not fit"):
        optimizer_for(with_gradients()).load_state_dict(state)


def test_configuration_overrides_the_checkpoint():
    first = optimizer_for(with_gradients(), lr=0.5)
    first.step()
    model = with_gradients()
    second = optimizer_for(model, lr=0.001)
    second.load_state_dict(first.state_dict())
    assert second.num_updates == 1
    assert second.step()["lr"] == 0.001
