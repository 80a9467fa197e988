"""Merging an adapter into its base: the weight stream for servers equals peft's own merge."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from engine_models import tiny_model
from peft import LoraConfig, inject_adapter_in_model

from agentrl.models.merging import merged_weights


def adapted(family: str, dtype: torch.dtype, **lora: object):
    model = tiny_model(family).to(dtype)
    inject_adapter_in_model(LoraConfig(r=4, target_modules=["q_proj", "down_proj"], **lora), model)
    torch.manual_seed(1)
    for name, value in model.named_parameters():
        if ".lora_" in name:
            value.data = 0.1 * torch.randn(value.shape)
    return model


def test_the_adapter_is_added_and_nothing_changes():
    model = adapted("qwen3", torch.float32, lora_alpha=12)
    before = deepcopy(model.state_dict())
    merged = dict(merged_weights(model))
    assert merged.keys() == {
        f"model.layers.{i}.{name}.weight" for i in range(2) for name in ("self_attn.q_proj", "mlp.down_proj")
    }
    for name, value in merged.items():
        a, b, base = (
            before[f"{name.removesuffix('weight')}{part}.weight"]
            for part in ("lora_A.default", "lora_B.default", "base_layer")
        )
        torch.testing.assert_close(value, base + 12 / 4 * b @ a, rtol=0, atol=1e-6)
        assert not torch.equal(value, base)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_sum_is_computed_in_float32():
    """W = 1 and a change of 0.001: bfloat16 has no value between 1 and 1.0078."""
    model = adapted("qwen3", torch.bfloat16)
    layer = model.model.layers[0].self_attn.q_proj
    layer.get_base_layer().weight.data.fill_(1.0)
    layer.lora_A["default"].weight.data.fill_(0.0005)
    layer.lora_B["default"].weight.data.fill_(0.25)
    weight = dict(merged_weights(model))["model.layers.0.self_attn.q_proj.weight"]
    assert weight.dtype == torch.float32
    assert weight.unique().tolist() == pytest.approx([1.001])


@pytest.mark.parametrize("kind", [{"use_rslora": True}, {"use_dora": True}])
def test_other_kinds_of_lora_are_merged_as_peft_does(kind: dict[str, object]):
    model = adapted("qwen3", torch.float32, **kind)
    expected = deepcopy(model)
    for module in expected.modules():
        if hasattr(module, "merge"):
            module.merge()
    own = dict(expected.named_modules())
    for name, value in merged_weights(model):
        assert torch.equal(value, own[name.removesuffix(".weight")].get_base_layer().weight)
