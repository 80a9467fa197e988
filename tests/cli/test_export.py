"""`agentrl export`: its output is the same policy and needs no other files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

from agentrl.backends.torch.checkpoint import save_checkpoint
from agentrl.cli.main import main
from agentrl.config.model import ModelConfig
from agentrl.models.adapters import adapter_parameters
from agentrl.models.loading import load_model, load_tokenizer

IDS = torch.arange(20).view(2, 10) * 3 % 61


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = Qwen2Config(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def checkpoint(base: Path, path: Path, lora_rank: int = 0) -> torch.Tensor:
    """Save a changed policy as a run does; return its logits."""
    config = ModelConfig(path=str(base), lora_rank=lora_rank)
    model = load_model(config, torch.device("cpu"))
    with torch.no_grad():
        for _, value in adapter_parameters(model) if lora_rank else model.named_parameters():
            value.add_(torch.randn(value.shape) * 0.1)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, model, load_tokenizer(config), {"optimizer": {}, "random": {}})
    (path / "run_state.json").write_text('{"step": 3, "position": 6}')
    return logits(model)


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model(input_ids=IDS).logits


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_export_is_the_same_policy_and_self_contained(base: Path, tmp_path: Path, lora_rank: int):
    expected = checkpoint(base, tmp_path / "run/checkpoints/step-3", lora_rank)
    (tmp_path / "run/checkpoints/latest").symlink_to("step-3")
    vocabulary = AutoTokenizer.from_pretrained(base).get_vocab()
    for source, folder in ((tmp_path / "run", "a"), (tmp_path / "run/checkpoints/step-3", "b")):
        assert main(["export", str(source), str(tmp_path / folder)]) == 0
        assert files(tmp_path / folder) == files(base)
    shutil.rmtree(base)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    torch.testing.assert_close(logits(exported), expected, rtol=0, atol=1e-5)
    assert exported.lm_head.weight is exported.model.embed_tokens.weight
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.get_vocab() == vocabulary
    assert torch.equal(logits(load_model(ModelConfig(path=str(tmp_path / "b")), torch.device("cpu"))), logits(exported))


@pytest.mark.slow
def test_a_small_update_of_a_bfloat16_base_is_kept(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    AutoModelForCausalLM.from_pretrained(base, dtype="bfloat16").save_pretrained(base)
    checkpoint(base, tmp_path / "step", 4)
    with safe_open(tmp_path / "step/adapter_model.safetensors", "pt") as file:
        adapter = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118  # it is no mapping
    assert main(["export", str(tmp_path / "step"), str(tmp_path / "new")]) == 0
    assert "in float32 (--dtype bfloat16 halves the size" in capsys.readouterr().out
    assert main(["export", "--dtype", "bfloat16", str(tmp_path / "step"), str(tmp_path / "half")]) == 0
    exported, half = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("new", "half"))
    assert (exported.dtype, half.dtype) == (torch.float32, torch.bfloat16)
    before = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    for name in ("model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"):
        lora_a, lora_b = (adapter[f"base_model.model.{name}.lora_{letter}.weight"] for letter in "AB")
        delta = exported.get_submodule(name).weight - before.get_submodule(name).weight
        torch.testing.assert_close(delta.detach(), 16 / 4 * lora_b @ lora_a, rtol=0, atol=1e-7)
    policy = load_model(ModelConfig(path=str(tmp_path / "step"), dtype="float32"), torch.device("cpu"))
    torch.testing.assert_close(logits(exported), logits(policy), rtol=0, atol=1e-5)
    assert (logits(half).float() - logits(policy)).abs().max() > 1e-4


def test_the_newest_complete_checkpoint_of_a_run_is_exported(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    checkpoint(base, tmp_path / "run/checkpoints/step-9")
    expected = checkpoint(base, tmp_path / "run/checkpoints/step-10")
    shutil.copytree(tmp_path / "run/checkpoints/step-9", tmp_path / "run/checkpoints/step-11")
    (tmp_path / "run/checkpoints/step-11/run_state.json").write_text('{"step":')  # a truncated file
    (tmp_path / "run/checkpoints/latest").symlink_to("step-9")  # as a kill between the two writes leaves it
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "new")]) == 0
    assert "checkpoints/step-10 to" in capsys.readouterr().out
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    torch.testing.assert_close(logits(exported), expected, rtol=0, atol=1e-5)


def test_a_folder_may_exist_if_it_is_empty(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint(base, tmp_path / "step")
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["export", "step", "new"]) == 0
    assert (tmp_path / "new/model.safetensors").is_file()


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["export", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("agentrl: error: ")


def test_invalid_exports_are_refused(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    checkpoint(base, tmp_path / "step", 4)
    capsys.readouterr()
    new = tmp_path / "new"
    assert refusal(capsys, tmp_path / "step", base) == f"'{base}' is not empty: give a new folder"
    assert refusal(capsys, tmp_path / "step", base / "config.json").endswith("is not empty: give a new folder")
    assert refusal(capsys, tmp_path / "gone", new) == f"there is no folder '{tmp_path / 'gone'}'"
    assert refusal(capsys, tmp_path / "step", base / "config.json/a/new").startswith("cannot create the folder '")
    weights = tmp_path / "step/adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:500])
    assert f"cannot load '{weights}': it has 500 of" in refusal(capsys, tmp_path / "step", new)
    weights.write_bytes(whole)
    (base / "model.safetensors").unlink()
    assert refusal(capsys, tmp_path / "step", new).startswith(f"base of '{tmp_path / 'step'}': cannot load '{base}'")
    assert "has full weights, which are copied unchanged" in refusal(capsys, base, new, "--dtype", "bfloat16")
    assert refusal(capsys, base, new).startswith(f"checkpoint: cannot load '{base}': there are no weights")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "step"]


def test_arguments_are_two_folders(capsys: pytest.CaptureFixture[str]):
    for words in (["a"], ["a", "b", "c"], ["a", "b", "--wrong"]):
        with pytest.raises(SystemExit):
            main(["export", *words])
        assert "arguments" in capsys.readouterr().err


def test_other_adapter_types_are_merged(base: Path, tmp_path: Path):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=2, target_modules=["q_proj"], bias="all", init_lora_weights=False),
    ).eval()
    model.save_pretrained(str(tmp_path / "adapter"))
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["bias"] == "all"
    assert main(["export", str(tmp_path / "adapter"), str(tmp_path / "new")]) == 0
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "new")), logits(model), rtol=0, atol=1e-5
    )
    assert (tmp_path / "new/tokenizer.json").is_file()  # copied from the base model
