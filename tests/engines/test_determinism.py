"""Deterministic mode: a session's tokens and log-probabilities do not change with concurrent requests, bit for bit."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from engine_models import tiny_model
from transformers import AutoModelForCausalLM

from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.torch.engine import TorchEngine
from agentrl.engines.torch.forward import fixed_width, limits_for
from agentrl.engines.torch.kv_check import _Probe
from agentrl.engines.torch.paged_kv import BLOCK_SIZE, num_blocks_for
from agentrl.engines.torch.spec import SPEC
from agentrl.models.attention import windows_of_all_layers

Answers = dict[int, list[tuple[list[int], list[float]]]]
LENGTHS = [3, 16, 17, 18, 33, 50, 54, 70]


async def session(engine: TorchEngine, number: int, answers: Answers, pauses: random.Random) -> None:
    """Sessions 2n and 2n + 1 have the same prompt."""
    context = [(number // 2 * 5 + i * i) % 90 for i in range(LENGTHS[number // 2 % len(LENGTHS)])]
    answers[number] = []
    for turn in range(3):
        for _ in range(pauses.randrange(4)):
            await asyncio.sleep(0)
        params = SamplingParams(max_new_tokens=4 + (number + turn) % 9, seed=100 * number + turn)
        completion = await engine.generate(GenerateRequest(context, params, session=f"s{number}"))
        answers[number].append((list(completion.token_ids), list(completion.logprobs)))
        context = [*context, *completion.token_ids, *range(10, 12 + number % 7)]
    await engine.release(f"s{number}")


def run_sessions(model, numbers: list[int], order_seed: int, max_num_seqs: int = 16) -> Answers:
    """All sessions, arriving in a random order with random gaps."""

    async def run() -> Answers:
        engine, answers, order = TorchEngine(model, max_num_seqs=max_num_seqs, deterministic=True), {}, numbers[:]
        randomness = random.Random(order_seed)
        randomness.shuffle(order)
        async with asyncio.TaskGroup() as group:
            for number in order:
                group.create_task(session(engine, number, answers, randomness))
                for _ in range(randomness.randrange(3)):
                    await asyncio.sleep(0)
        await engine.close()
        return answers

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma2", "gpt_neox"])
def test_batch_composition_and_arrival_order_do_not_change_results(family):
    model = tiny_model(family)
    together = [run_sessions(model, list(range(16)), order_seed) for order_seed in range(3)]
    assert together[0] == together[1] == together[2]
    for number in (0, 5, 15):
        assert run_sessions(model, [number], order_seed=9)[number] == together[0][number]


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss", "mamba"])
def test_models_with_batch_dependent_results_run_row_by_row(family):
    model = tiny_model(family)
    assert run_sessions(model, list(range(6)), 1, 4) == run_sessions(model, list(range(6)), 2, 4)


@torch.inference_mode()
def test_much_longer_contexts_in_the_batch_do_not_change_results(task_folder):
    """Beyond about 200 keys, a sum is computed in another order, even if the extra keys have weight 0."""
    model = AutoModelForCausalLM.from_pretrained(task_folder / "model").eval()
    windows, limits = windows_of_all_layers(model), limits_for("cpu", 4, fixed=True)

    def logits(*lengths: int) -> torch.Tensor:
        """Logits of the last token."""
        probe = _Probe(model, windows, lengths)
        probe.prefill(limits.prefill, 16)
        return torch.stack([probe.decode(limits.decode, back)[-1] for back in (2, 1)])

    for length, beside in ((200, 390), (380, 600)):
        assert torch.equal(logits(beside, length), logits(length))


def test_read_width_depends_only_on_the_length_and_has_few_values():
    widths = [fixed_width(length) for length in range(1, 4097)]
    assert all(width * BLOCK_SIZE >= length for length, width in enumerate(widths, 1))
    assert all(width <= max(4, num_blocks_for(length) * 3 / 2 + 1) for length, width in enumerate(widths, 1))
    assert widths == sorted(widths)
    assert len(set(widths)) == 12


@pytest.mark.slow
def test_last_bits_differ_without_deterministic_mode():
    """Shows that the test above can fail: without deterministic mode, batching changes bits."""

    async def logprobs(num_beside: int) -> list[float]:
        engine = TorchEngine(tiny_model("qwen3"), max_num_seqs=32)
        requests = [
            GenerateRequest([5, 6, 7 + beside], SamplingParams(max_new_tokens=12, seed=1))
            for beside in range(num_beside)
        ]
        first, *_ = await asyncio.gather(*map(engine.generate, requests))
        await engine.close()
        return list(first.logprobs)

    assert len({tuple(asyncio.run(logprobs(num_beside))) for num_beside in (1, 2, 3, 5, 17)}) > 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_capabilities_state_the_rows_of_a_step(device: str):
    assert limits_for(device, 1000, fixed=True).decode.rows == SPEC.fixed_rows[device]
