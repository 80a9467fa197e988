"""The numbers in docs/gpu.md follow from its formulas, and the formulas from the model."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

DOCUMENT = (Path(__file__).parents[2] / "docs/gpu.md").read_text()
LAYERS, HIDDEN, INNER, KV_HEADS, HEAD_SIZE, VOCABULARY = 24, 896, 4864, 2, 64, 151_936
CHUNK = 5 * 2**27 * 4


def num_weights() -> int:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // HEAD_SIZE,
        num_key_value_heads=KV_HEADS,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        return sum(value.numel() for value in AutoModelForCausalLM.from_config(config).parameters())


def row(name: str) -> list[str]:
    line, *_ = (line for line in DOCUMENT.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip(" *") for cell in line.split("|")[2:-1]]


def gb(values: list[float], digits: int) -> list[str]:
    return [f"{value / 1e9:.{digits}f}" for value in values]


def test_the_figures_follow_from_the_formulas():
    weights = num_weights()
    assert f"{weights:,} weights" in DOCUMENT
    kv_width = KV_HEADS * HEAD_SIZE
    adapter = LAYERS * (2 * (HIDDEN + HIDDEN) + 2 * (HIDDEN + kv_width) + 3 * (HIDDEN + INNER))
    assert f"{adapter:,} r weights" in DOCUMENT
    kv_bytes = 2 * LAYERS * kv_width * 2
    assert f"= tokens x {kv_bytes:,}" in DOCUMENT

    held = [4 * weights, 2 * weights, 2 * weights]
    trained = [12 * weights, 6 * weights, 16 * 16 * adapter]
    engine = [2 * weights, 2 * weights, 2 * weights + 4 * 16 * adapter]
    kv = [128 * 1536 * kv_bytes] * 3
    constant = [sum(parts) for parts in zip(held, trained, engine, kv, strict=True)]
    cast, kept, inputs = [2 * weights, 0, 0], [66_368, 57_408, 54_048], [4 * HIDDEN, 2 * HIDDEN, 2 * HIDDEN]
    plain = [4096 * LAYERS * width + copy for width, copy in zip(kept, cast, strict=True)]
    saving = [16384 * (LAYERS * i + width) + copy for i, width, copy in zip(inputs, kept, cast, strict=True)]

    assert row("weights")[:3] == gb(held, 2)
    assert row("gradients, optimizer averages, LoRA weights") == gb(trained, 2)
    assert row("the engine's copy, in bfloat16") == gb(engine, 2)
    assert row("KV of 196,608 tokens, in bfloat16") == gb(kv, 2)
    assert row("**at all times**") == gb(constant, 1)
    assert row("logits of one chunk") == gb([CHUNK] * 3, 2)
    for name, total, activations in (
        ("activations, 4,096 tokens", "**sum, micro-batches of 4,096 tokens**", plain),
        ("activations, 16,384 tokens, gradient checkpointing", "**sum, with gradient checkpointing**", saving),
    ):
        assert row(name) == gb(activations, 2)
        assert row(total) == gb([c + CHUNK + a for c, a in zip(constant, activations, strict=True)], 1)
    copied = 2 * HIDDEN * 2  # one key and value per query head
    assert f"n x m x layers x {copied:,} in bfloat16" in DOCUMENT
    assert f"({2 * kv_width * 2} on a CPU)" in DOCUMENT
    assert f"activations of one token need {57_408 / copied:.1f} times the memory of one copied key" in DOCUMENT
    num_tokens, num_keys = 2048 + 32 * 16, 31 * (2048 + 16)
    assert f"the activations of {num_keys // 16:,} tokens, in addition to" in DOCUMENT
    assert f"of the {num_tokens:,} packed tokens" in DOCUMENT
    assert f"needs {16384 * LAYERS * 57_408 / 1e9:.1f} GB for activations alone" in DOCUMENT
