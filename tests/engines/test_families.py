"""Log-probabilities over multi-turn sessions equal a plain transformers forward, for every model family."""

from __future__ import annotations

import asyncio

import pytest
import torch
from engine_models import FAMILIES, WITHOUT_KV, tiny_model

from agentrl.engines.base import Completion, GenerateRequest, SamplingParams
from agentrl.engines.torch.engine import TorchEngine

Turn = tuple[list[int], float, Completion]


async def conversation(engine: TorchEngine, number: int, num_turns: int = 3) -> list[Turn]:
    """Turns of one session with different temperatures; the tool's text is random."""
    context, turns = [(3 * number + 7 * i) % 90 for i in range(17)], []
    for turn in range(num_turns):
        temperature = (1.0, 0.7, 1.6)[turn % 3]
        params = SamplingParams(temperature, max_new_tokens=9, seed=10 * number + turn)
        completion = await engine.generate(GenerateRequest(context, params, session=f"s{number}"))
        turns.append((context, temperature, completion))
        context = [*context, *completion.token_ids, 11, 12, 13 + number]
    return turns


def run_conversations(engine: TorchEngine, numbers: range) -> list[Turn]:
    async def run() -> list[list[Turn]]:
        try:
            return await asyncio.gather(*[conversation(engine, number) for number in numbers])
        finally:
            await engine.close()

    return [turn for turns in asyncio.run(run()) for turn in turns]


@torch.no_grad()
def largest_difference(model, turns: list[Turn]) -> float:
    """Against a plain forward of the complete sequence, with transformers' own attention."""
    worst = 0.0
    for context, temperature, completion in turns:
        logits = model(torch.tensor([[*context, *completion.token_ids]]), use_cache=False).logits[0].double()
        expected = torch.log_softmax(logits / temperature, dim=-1)
        for i, (token_id, logprob) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
            worst = max(worst, abs(expected[len(context) + i - 1, token_id].item() - logprob))
    return worst


@pytest.mark.one_in(15)
@pytest.mark.parametrize("deterministic", [False, True], ids=["free", "deterministic"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_agree_with_a_plain_forward(family, deterministic):
    model = tiny_model(family)
    engine = TorchEngine(model, max_num_seqs=4, deterministic=deterministic)
    assert engine.kv_reuse
    turns = run_conversations(engine, range(3))
    assert largest_difference(model, turns) < 1e-4
    assert engine.metrics()["cached_tokens"] > 0


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", WITHOUT_KV)
def test_models_without_reusable_kv_recompute_earlier_turns(family, caplog):
    model = tiny_model(family)
    engine = TorchEngine(model, max_num_seqs=4, max_sequence_length=512)
    assert not engine.kv_reuse
    assert "KV is not reused" in caplog.text
    assert engine.metrics()["kv_reuse"] == 0
    turns = run_conversations(engine, range(2))
    assert largest_difference(model, turns) < 1e-4
    assert engine.metrics()["cached_tokens"] == 0


@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma3"])
def test_sdpa_works_as_reference(family):
    model = tiny_model(family, attention="sdpa")
    engine = TorchEngine(model, max_num_seqs=4)
    assert engine.kv_reuse
    assert largest_difference(model, run_conversations(engine, range(2))) < 1e-4


def test_missing_attention_cap_is_reproduced(caplog):
    model = tiny_model("gemma2", attention="sdpa")
    engine = TorchEngine(model, max_num_seqs=4)
    assert not engine.kv_reuse
    assert "differ from 'sdpa' attention" in caplog.text
    assert largest_difference(model, run_conversations(engine, range(1))) < 1e-4


def test_sliding_window_errors_are_detected():
    turns = run_conversations(TorchEngine(tiny_model("mistral"), max_num_seqs=4), range(1))
    assert largest_difference(tiny_model("mistral", sliding_window=10), turns) > 1e-2
