"""LoRA adapters: their target modules, no effect when new, and which ones are refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedModel, Qwen2Config, Qwen3MoeConfig

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.adapter_folder import MOVED
from agentrl.models.adapters import adapter_off, adapter_parameters, adapter_randomized, write_adapter
from agentrl.models.loading import load_model

CPU = torch.device("cpu")
SIZES = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
CONFIGS = {
    "qwen2": Qwen2Config(intermediate_size=48, num_key_value_heads=2, tie_word_embeddings=True, **SIZES),
    "qwen3_moe": Qwen3MoeConfig(intermediate_size=48, num_key_value_heads=2, **EXPERTS, **SIZES),
    "gpt2": GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4),
}
IDS = torch.arange(20).view(2, 10) * 3 % 61


@pytest.fixture(params=CONFIGS)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save_base(tmp_path / "base", request.param)


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    return save_base(tmp_path / "base", "qwen2")


def save_base(path: Path, family: str) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[family]).save_pretrained(path)
    return path


def load(path: Path, dtype: str | None = None, **options: object) -> PreTrainedModel:
    return load_model(ModelConfig(path=str(path), **options), CPU, dtype)


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(input_ids=IDS).logits


def train_a_little(model: PreTrainedModel) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, value in adapter_parameters(model):
            value.add_(torch.randn(value.shape, generator=generator) * 0.1)
    return model


def saved(model: PreTrainedModel, path: Path) -> Path:
    path.mkdir()
    write_adapter(model, model.state_dict(), path)
    return path


def adapted(model: PreTrainedModel) -> set[str]:
    return {name.partition(".lora_")[0] for name, _ in adapter_parameters(model)}


def test_new_adapter_changes_no_output_and_is_the_only_trained_part(base: Path):
    model = load(base, lora_rank=4)
    assert torch.equal(logits(model), logits(load(base)))
    assert type(model) is type(load(base))
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained == {name for name, _ in adapter_parameters(model)} != set()
    assert all(value.any() == (".lora_A." in name) for name, value in adapter_parameters(model))
    assert not any(module.training for module in model.modules())


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_saved_adapter_loads_in_peft_and_transformers(base: Path, tmp_path: Path):
    model = train_a_little(load(base, lora_rank=4, lora_alpha=8))
    folder = saved(model, tmp_path / "adapter")
    assert sorted(file.name for file in folder.glob("*.json")) == ["adapter_config.json"]
    with_peft = PeftModel.from_pretrained(load(base), str(folder)).eval()
    assert not torch.allclose(logits(model), logits(load(base)), atol=1e-3)
    torch.testing.assert_close(logits(with_peft), logits(model), rtol=0, atol=1e-6)
    with_transformers = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(logits(with_transformers), logits(model), rtol=0, atol=1e-6)
    for again in (load(folder), load(base, lora_adapter_path=str(folder)), load(folder, lora_rank=4)):
        assert torch.equal(logits(again), logits(model))


def test_training_continues_an_adapter_made_by_peft(qwen: Path, tmp_path: Path):
    theirs = get_peft_model(load(qwen), LoraConfig(r=3, lora_alpha=12, target_modules=["q_proj", "v_proj"]))
    train_a_little(theirs.base_model.model)
    theirs.save_pretrained(str(tmp_path / "adapter"))
    ours = load(qwen, lora_adapter_path=str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(ours), logits(theirs.eval()), rtol=0, atol=1e-6)
    assert all(value.requires_grad for _, value in adapter_parameters(ours))


@pytest.mark.one_in(2)
def test_disabled_adapter_equals_the_base_exactly(base: Path):
    model = train_a_little(load(base, lora_rank=4))
    (_, first), *_ = adapter_parameters(model)
    first.requires_grad_(False)  # as actor.freeze_modules may do
    before = {name: value.requires_grad for name, value in model.named_parameters()}
    with adapter_off(model):
        assert torch.equal(logits(model), logits(load(base)))
    assert {name: value.requires_grad for name, value in model.named_parameters()} == before
    assert not torch.equal(logits(model), logits(load(base)))


def test_check_perturbs_a_new_adapter_temporarily(qwen: Path):
    model = load(qwen, lora_rank=4)
    plain = logits(model)
    with adapter_randomized(model):
        assert not torch.equal(logits(model), plain)
    assert torch.equal(logits(model), plain)


def test_adapted_modules_follow_the_options(qwen: Path):
    layers = {f"model.layers.{number}." for number in (0, 1)}
    linear = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
    linear |= {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    assert adapted(load(qwen, lora_rank=2)) == {layer + name for layer in layers for name in linear}
    named = load(qwen, lora_rank=2, target_modules=["q_proj", "mlp.up_proj"], exclude_modules="layers.0.mlp.up_proj")
    expected = {"0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj"}
    assert adapted(named) == {f"model.layers.{name}" for name in expected}


def test_adapters_are_kept_in_float32(qwen: Path):
    model = load(qwen, "bfloat16", lora_rank=2)
    assert {value.dtype for _, value in adapter_parameters(model)} == {torch.float32}
    assert model.dtype == logits(model).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"target_modules": "q_prj"}, "the model has no module 'q_prj': did you mean 'q_proj'?"),
        ({"exclude_modules": "v"}, "'model.exclude_modules': the model has no module 'v'"),
        ({"target_modules": ["q_proj", "all-linear"]}, "the model has no module 'all-linear'"),
        ({"target_modules": "norm"}, "'model.norm' (Qwen2RMSNorm) is not a linear module"),
        ({"target_modules": "lm_head"}, "'lm_head' (Linear) is not a linear module of the body"),
        ({"target_modules": "q_proj", "exclude_modules": "self_attn.q_proj"}, "excludes all"),
    ],
)
def test_modules_without_adapter_support_are_refused(qwen: Path, options: dict[str, object], complaint: str):
    assert complaint in refusal(qwen, lora_rank=2, **options)


def test_contradictions_with_a_saved_adapter(qwen: Path, tmp_path: Path):
    folder = saved(load(qwen, lora_rank=4, lora_alpha=8), tmp_path / "adapter")
    path = str(folder)
    assert "'model.lora_rank=8' contradicts" in refusal(qwen, lora_adapter_path=path, lora_rank=8)
    assert "'model.lora_alpha=4' contradicts" in refusal(qwen, lora_adapter_path=path, lora_alpha=4)
    assert "is an adapter itself" in refusal(folder, lora_adapter_path=path)
    assert "there is no adapter_config.json in" in refusal(qwen, lora_adapter_path=str(qwen))


def test_adapter_with_missing_base_model(qwen: Path, tmp_path: Path):
    folder = saved(load(qwen, lora_rank=4), tmp_path / "adapter")
    shutil.rmtree(qwen)
    assert refusal(folder) == f"base of '{folder}' (if it has moved, {MOVED}): there is no folder '{qwen}'"


def test_adapter_of_another_model_or_kind_is_refused(qwen: Path, tmp_path: Path):
    folder = saved(load(qwen, lora_rank=4), tmp_path / "adapter")
    other = save_base(tmp_path / "other", "gpt2")
    assert "does not fit its base" in refusal(other, lora_adapter_path=str(folder))
    file = folder / "adapter_config.json"
    whole = file.read_text()
    for change, complaint in (
        ({"peft_type": "IA3"}, "type IA3: only LORA is supported"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save', which is not supported"),
        ({"bias": "all"}, "'bias', which is not supported"),
        ({"base_model_name_or_path": None}, f"does not name its base: {MOVED}"),
    ):
        file.write_text(json.dumps(json.loads(whole) | change))
        assert complaint in refusal(folder)
    file.write_text(whole[:40])
    assert "is not the configuration of an adapter" in refusal(folder)


@pytest.mark.parametrize("num_bytes", [0, 100, 3000])
def test_damaged_adapter_is_refused(qwen: Path, tmp_path: Path, num_bytes: int):
    file = saved(load(qwen, lora_rank=4), tmp_path / "adapter") / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:num_bytes])
    assert f"cannot load '{file}'" in refusal(file.parent)
    file.unlink()
    assert "there is no adapter_model.safetensors" in refusal(file.parent)


def test_without_peft_the_error_has_the_install_command(qwen: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    assert refusal(qwen, lora_rank=2) == "LoRA needs peft: pip install 'agentrl-train[lora]'"
    load(qwen)  # without LoRA this loads


def test_adapters_compute_in_the_data_type_of_their_inputs(qwen: Path):
    """The formula of a linear layer with an adapter (arXiv 2106.09685, equation 3) in float64 is the reference."""
    model = load(qwen, "bfloat16", lora_rank=4, lora_alpha=8)
    with adapter_randomized(model):
        layer = model.model.layers[0].mlp.up_proj
        own = [layer.weight, layer.lora_A["default"].weight, layer.lora_B["default"].weight]
        states = torch.randn(50, 32, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
        kept: list[torch.dtype] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda value: (kept.append(value.dtype), value)[1], lambda value: value
        ):
            found = layer(states)
        weight, down, up, exact = (value.detach().double().requires_grad_() for value in (*own, states))
        expected = exact @ weight.T + 2.0 * (exact @ down.T) @ up.T
        gradients = torch.autograd.grad(found.float().square().mean(), (*own[1:], states))
        references = torch.autograd.grad(expected.square().mean(), (down, up, exact))
    assert set(kept) == {found.dtype} == {torch.bfloat16}
    assert [value.dtype for value in gradients] == [torch.float32, torch.float32, torch.bfloat16]
    for value, reference in zip([found, *gradients], [expected, *references], strict=True):
        assert (value - reference).norm() < 0.01 * reference.norm()


def test_dora_computes_as_in_peft(qwen: Path, tmp_path: Path):
    adapter = tmp_path / "adapter"
    made = get_peft_model(load(qwen), LoraConfig(r=4, use_dora=True, target_modules=["q_proj"]))
    train_a_little(made.base_model.model)
    made.save_pretrained(str(adapter))
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(qwen, dtype="bfloat16"), adapter).eval()
    assert torch.equal(logits(load(qwen, "bfloat16", lora_adapter_path=str(adapter))), logits(theirs))
