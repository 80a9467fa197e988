"""Random sessions under a tight KV budget: every log-probability is right, and no block leaks."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from engine_models import tiny_model

from agentrl.engines.base import FinishReason, GenerateRequest, SamplingParams
from agentrl.engines.torch.engine import TorchEngine

Seen = list[tuple[list[int], list[int], list[float]]]


async def wander(engine: TorchEngine, name: str, choose: random.Random, seen: Seen) -> None:
    """Turns that continue, rewrite, restart, are aborted, cancelled or released."""
    context = [choose.randrange(3)] * choose.randrange(1, 40)
    for turn in range(5):
        params = SamplingParams(max_new_tokens=choose.randrange(1, 12), seed=turn)
        deadline_s = 0.002 if choose.random() < 0.1 else None
        work = asyncio.create_task(engine.generate(GenerateRequest(context, params, name, deadline_s)))
        await asyncio.sleep(0)
        end = choose.choice(["wait"] * 6 + ["abort", "cancel", "release"])
        if end == "cancel":
            work.cancel()
        elif end != "wait":
            await (engine.abort(name) if end == "abort" else engine.release(name))
        (completion,) = await asyncio.gather(work, return_exceptions=True)
        if isinstance(completion, asyncio.CancelledError):
            continue
        assert completion.finish_reason in FinishReason
        seen.append((context, list(completion.token_ids), list(completion.logprobs)))
        context = [*context, *completion.token_ids, turn, 7]
        if choose.random() < 0.3:
            context = [*context[: choose.randrange(1, len(context))], 8, 9]
    await engine.release(name)


@torch.no_grad()
def assert_right(model, seen: Seen) -> None:
    for context, token_ids, logprobs in seen:
        logits = model(torch.tensor([[*context, *token_ids]]), use_cache=False).logits[0]
        expected = torch.log_softmax(logits.double(), dim=-1)
        rows = range(len(context) - 1, len(context) + len(token_ids) - 1)
        assert logprobs == pytest.approx(
            [expected[i, t].item() for i, t in zip(rows, token_ids, strict=True)], abs=1e-4
        )


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("deterministic", [False, True], ids=["free", "deterministic"])
@pytest.mark.parametrize("seed", range(4))
def test_random_use_leaves_a_consistent_engine(seed, deterministic):
    model, seen = tiny_model("mistral"), []
    engine = TorchEngine(model, max_num_seqs=5, max_sequence_length=160, max_kv_tokens=480, deterministic=deterministic)

    async def run() -> None:
        choose = random.Random(seed)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for i in range(12):
                group.create_task(wander(engine, f"s{i}", random.Random(choose.random()), seen))
        assert engine.metrics()["kv_tokens"] == 0
        assert engine.metrics()["waiting_requests"] == engine.metrics()["running_requests"] == 0
        assert engine._scheduler.conversations._reserved == 0
        assert not engine._scheduler.conversations.index._blocks
        assert not engine._scheduler.conversations.index._keys
        await engine.close()

    asyncio.run(run())
    assert sum(len(token_ids) for _, token_ids, _ in seen) > 100
    assert_right(model, seen)
