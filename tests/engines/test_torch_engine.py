"""The embedded engine: which tokens are computed, capacity, weight changes, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import chain

import pytest
import torch
from engine_models import VOCABULARY, tiny_model

from agentrl.engines.base import Completion, FinishReason, GenerateRequest, SamplingParams
from agentrl.engines.torch import worker
from agentrl.engines.torch.engine import TorchEngine
from agentrl.engines.torch.scheduler import NonFiniteLogitsError
from agentrl.types.trajectory import VersionSpan

PROMPT = [(i * i) % 90 for i in range(54)]


def ask(token_ids: list[int], session: str = "", seed: int = 0, length: int = 6, **sampling: object) -> GenerateRequest:
    """Request exactly `length` tokens: no stop token ends the answer."""
    sampling = {"stop_token_ids": (VOCABULARY,), **sampling}
    return GenerateRequest(token_ids, SamplingParams(max_new_tokens=length, seed=seed, **sampling), session)


def with_engine(use: Callable[[TorchEngine], Awaitable[object]], model=None, **options: object) -> TorchEngine:
    engine = TorchEngine(model or tiny_model("qwen3"), **{"max_num_seqs": 16, **options})

    async def run() -> None:
        try:
            async with asyncio.timeout(20):
                await use(engine)
        finally:
            await engine.close()

    asyncio.run(run())
    return engine


def test_turn_forwards_only_new_tokens():
    async def use(engine: TorchEngine) -> None:
        first = await engine.generate(ask(PROMPT, "a"))
        # the sixth token is computed only if the session continues
        assert engine.metrics()["forwarded_tokens"] == 54 + 5
        assert engine.metrics()["decode_steps"] == 6
        longer = [*PROMPT, *first.token_ids, 1, 2, 3]
        second = await engine.generate(ask(longer, "a"))
        assert second.num_cached_tokens == 59
        assert engine.metrics()["forwarded_tokens"] == 54 + 5 + 4 + 5

    with_engine(use)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_group_computes_its_prompt_once(deterministic):
    async def use(engine: TorchEngine) -> None:
        completions = await asyncio.gather(*[engine.generate(ask(PROMPT, f"s{i}", seed=i)) for i in range(8)])
        assert sorted(c.num_cached_tokens for c in completions) == [0] + [53] * 7
        # without deterministic mode, the first sibling's first token comes with the prompt, before the others can start
        groups = [completions] if deterministic else [completions[:1], completions[1:]]
        contexts = [{tuple(c.token_ids[:length]) for c in group for length in range(6)} for group in groups]
        assert engine.metrics()["forwarded_tokens"] == 53 + sum(map(len, contexts))
        assert engine.metrics()["decode_steps"] == (6 if deterministic else 7)

    with_engine(use, deterministic=deterministic)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("deterministic", [False, True])
def test_equal_rollouts_are_computed_once_until_they_differ(deterministic):
    """Greedy siblings sample the same text; the tool answers all alike, then each of them differently."""
    replies = [[[70, 71, 72]] * 4, [[80 + i, 1, 2] for i in range(4)]]
    costs: list[float] = []

    async def talk(engine: TorchEngine, sessions: list[int]) -> list[list[list[float]]]:
        contexts = [PROMPT for _ in sessions]
        logprobs: list[list[list[float]]] = [[] for _ in sessions]
        for turn in range(3):
            asks = [ask(c, f"s{i}", temperature=0.0) for i, c in zip(sessions, contexts, strict=True)]
            completions = await asyncio.gather(*map(engine.generate, asks))
            costs.append(engine.metrics()["forwarded_tokens"])
            for number, done in enumerate(completions):
                logprobs[number].append(list(done.logprobs))
                reply = replies[turn][sessions[number]] if turn < 2 else []
                contexts[number] = [*contexts[number], *done.token_ids, *reply]
        return logprobs

    together: list[list[list[float]]] = []
    with_engine(lambda engine: _into(together, talk(engine, [0, 1, 2, 3])), deterministic=deterministic)
    first, second, third = costs
    late = 0 if deterministic else 6  # the first sibling is a token ahead
    assert first == 53 + 6 + late
    assert second - first == 4 + 5
    assert third - second == 4 * (4 + 5)
    for number in range(4):
        alone: list[list[list[float]]] = []
        with_engine(lambda engine, n=number, a=alone: _into(a, talk(engine, [n])), deterministic=deterministic)
        one, other = (list(chain.from_iterable(turns)) for turns in (alone[0], together[number]))
        assert one == (other if deterministic else pytest.approx(other, abs=1e-5))


async def _into(found: list, work: Awaitable[list]) -> None:
    found += await work


@pytest.mark.parametrize("deterministic", [False, True])
def test_tasks_share_common_prefixes_in_full_blocks(deterministic):
    async def use(engine: TorchEngine) -> None:
        others = [PROMPT[:40] + [60 + i] * 14 for i in range(3)]
        alone = [await engine.generate(ask(other, f"alone{i}")) for i, other in enumerate(others[:1])]
        for i, other in enumerate(others[1:], start=1):
            assert (await engine.generate(ask(other, f"s{i}"))).num_cached_tokens == 32
        again = await engine.generate(ask(others[0], "again"))
        assert list(again.token_ids) == list(alone[0].token_ids)

    with_engine(use, deterministic=deterministic)


def test_fork_reuses_kv_of_a_finished_request():
    async def use(engine: TorchEngine) -> None:
        first = await engine.generate(ask(PROMPT, "a", length=30))
        forked = await engine.generate(ask([*PROMPT, *first.token_ids, 4], "b"))
        assert forked.num_cached_tokens == 80  # five of the blocks that hold 54 + 29 tokens

    with_engine(use)


def test_rewritten_history_reuses_the_common_prefix_without_affecting_others():
    async def use(engine: TorchEngine) -> None:
        expected = await engine.generate(ask(PROMPT, "fresh", seed=5, length=20))
        await engine.release("fresh")
        await asyncio.gather(*[engine.generate(ask(PROMPT, f"s{i}", seed=i)) for i in range(2)])
        rewritten = await engine.generate(ask([*PROMPT[:20], *[3] * 60], "s0"))
        assert rewritten.num_cached_tokens == 20
        sibling = await engine.generate(ask(PROMPT, "s1", seed=5, length=20))
        late = await engine.generate(ask(PROMPT, "late", seed=5, length=20))
        assert list(sibling.token_ids) == list(late.token_ids) == list(expected.token_ids)

    with_engine(use)


def test_requests_join_without_waiting_for_others_to_end():
    async def use(engine: TorchEngine) -> None:
        long = asyncio.create_task(engine.generate(ask(PROMPT, "long", length=150)))
        for i in range(5):
            await engine.generate(ask([7, 8, 9, i], f"short{i}", length=2))
        assert not long.done()
        await long
        assert engine.metrics()["decode_steps"] < 150 + 10

    with_engine(use)


def test_oldest_idle_sessions_are_evicted_first():
    async def use(engine: TorchEngine) -> None:
        for i in range(4):  # 3 blocks each, 10 in all
            await engine.generate(ask([i] * 40, f"s{i}"))
        assert engine.metrics()["evicted_sessions"] == 1
        assert (await engine.generate(ask([1] * 40, "s1"))).num_cached_tokens == 39
        assert (await engine.generate(ask([0] * 40, "s0"))).num_cached_tokens == 0
        assert engine.metrics()["kv_tokens"] <= 160

    with_engine(use, max_kv_tokens=160)


def test_waiting_requests_run_by_priority():
    async def use(engine: TorchEngine) -> None:
        done: list[int] = []

        async def one(priority: int) -> None:
            await engine.generate(replace(ask([7, 8, priority + 9], f"s{priority}", length=3), priority=priority))
            done.append(priority)

        await engine.pause("in_place")
        waiting = [asyncio.create_task(one(priority)) for priority in (0, -2, -1, 3, 0)]
        await asyncio.sleep(0)
        await engine.resume()
        await asyncio.gather(*waiting)
        assert done == [3, 0, 0, -1, -2]

    with_engine(use, max_num_seqs=1)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("deterministic", [False, True])
def test_more_sessions_than_fit_wait_their_turn(deterministic):
    async def use(engine: TorchEngine) -> None:
        async def session(i: int) -> list[int]:
            first = await engine.generate(ask([i] * 40, f"s{i}", seed=i))
            second = await engine.generate(ask([*[i] * 40, *first.token_ids, 5], f"s{i}", seed=i))
            await engine.release(f"s{i}")
            return [*first.token_ids, *second.token_ids]

        crowded = await asyncio.gather(*[session(i) for i in range(9)])
        assert engine.metrics()["kv_tokens"] <= 160 + 16
        assert [await session(i) for i in range(9)] == crowded

    with_engine(use, max_kv_tokens=160, max_sequence_length=64, deterministic=deterministic)


@pytest.mark.parametrize(
    ("token_ids", "length", "message"),
    [
        ([], 3, "empty"),
        ([VOCABULARY], 3, "vocabulary"),
        ([-1], 3, "vocabulary"),
        ([1] * 256, 3, "no room in 256"),
        ([1] * 100, 100, "more than max_kv_tokens, 160"),
    ],
)
def test_requests_that_can_never_fit_are_refused(token_ids, length, message):
    async def use(engine: TorchEngine) -> None:
        with pytest.raises(ValueError, match=message):
            await engine.generate(ask(token_ids, length=length))

    with_engine(use, max_kv_tokens=160)


def test_a_full_context_ends_by_length():
    async def use(engine: TorchEngine) -> None:
        completion = await engine.generate(ask([1] * 250, length=50))
        assert (len(completion.token_ids), completion.finish_reason) == (6, FinishReason.LENGTH)
        endless = await engine.generate(GenerateRequest([2] * 250, SamplingParams(stop_token_ids=(VOCABULARY,))))
        assert len(endless.token_ids) == 6

    with_engine(use)


def test_images_are_refused():
    async def use(engine: TorchEngine) -> None:
        with pytest.raises(ValueError, match="does not accept images"):
            await engine.generate(GenerateRequest(PROMPT, images=["data:image/png;base64,"]))

    with_engine(use)


def test_end_tokens_of_model_and_request_stop():
    async def use(engine: TorchEngine) -> None:
        assert engine.eos_token_ids == (96,)
        free = await engine.generate(ask(PROMPT))
        engine.eos_token_ids = (free.token_ids[1],)
        assert (await engine.generate(GenerateRequest(PROMPT, SamplingParams(seed=0)))).token_ids == free.token_ids[:2]
        assert (await engine.generate(ask(PROMPT))).token_ids == free.token_ids[:2]

    with_engine(use)


def test_rollouts_of_several_sessions_that_hold_all_slots_do_not_wait_for_each_other_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(worker, "STALL_S", 0.01)

    async def rollout(engine: TorchEngine, name: str) -> None:
        for part in ("a", "b"):  # the first session is idle, but holds its slot, while the second requests one
            await engine.generate(ask(PROMPT, f"{name}-{part}"))
        for part in ("a", "b"):
            await engine.release(f"{name}-{part}")

    async def use(engine: TorchEngine) -> None:
        await asyncio.gather(*(rollout(engine, name) for name in "xyz"))
        assert engine.metrics()["evicted_sessions"] >= 1

    with_engine(use, deterministic=True, max_num_seqs=2, max_sequence_length=64)
    assert "not bitwise reproducible" in caplog.text


class Letters:
    """Token 1 is 'b', and so on; token 0 ends a word."""

    def decode(self, token_ids, *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(" " if token_id == 0 else f"<{token_id}>" for token_id in token_ids)


def test_a_stop_string_over_several_tokens_ends_the_turn():
    async def use(engine: TorchEngine) -> None:
        free = await engine.generate(ask(PROMPT, length=10))
        stop = f"{free.token_ids[3]}><{free.token_ids[4]}"
        stopped = await engine.generate(ask(PROMPT, length=10, stop=("nothing", stop)))
        assert (stopped.token_ids, stopped.matched_stop) == (free.token_ids[:5], stop)
        assert stopped.finish_reason is FinishReason.STOP

    with_engine(use, tokenizer=Letters())


def test_stop_strings_without_a_tokenizer_are_refused():
    async def use(engine: TorchEngine) -> None:
        with pytest.raises(ValueError, match="tokenizer"):
            await engine.generate(ask(PROMPT, stop=("x",)))

    with_engine(use)


@torch.no_grad()
def plain_logprobs(model, context: list[int], token_ids: list[int]) -> list[float]:
    logits = model(torch.tensor([[*context, *token_ids]]), use_cache=False).logits[0]
    chosen = torch.log_softmax(logits.double(), dim=-1)[len(context) - 1 : -1]
    return [row[token_id].item() for row, token_id in zip(chosen, token_ids, strict=True)]


def test_weights_may_change_in_the_middle_of_a_request():
    """Tokens before the change use the old weights, tokens after it the new ones, and each has the right version."""
    old, new = tiny_model("qwen3"), tiny_model("qwen3")
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(1.1)
    seen: list[Completion] = []

    async def use(engine: TorchEngine) -> None:
        work = asyncio.create_task(engine.generate(ask(PROMPT, "a", length=150)))
        while engine.metrics()["sampled_tokens"] < 10:  # noqa: ASYNC110  (the engine's thread sets no event)
            await asyncio.sleep(0.001)
        await engine.pause("in_place")
        await engine.load_weights(((n, p) for n, p in new.named_parameters()), version=1)
        await engine.resume()
        seen.append(await work)

    with_engine(use, eos_token_ids=(VOCABULARY,))
    (completion,) = seen
    first, second = completion.policy_versions
    assert (first.version, second.version) == (0, 1)
    assert first.num_tokens + second.num_tokens == 150
    for span, model, start in ((first, old, 0), (second, new, first.num_tokens)):
        end = start + span.num_tokens
        expected = plain_logprobs(model, [*PROMPT, *completion.token_ids[:start]], completion.token_ids[start:end])
        assert completion.logprobs[start:end] == pytest.approx(expected, abs=1e-4)


def test_new_weights_clear_the_cache():
    async def use(engine: TorchEngine) -> None:
        await engine.generate(ask(PROMPT, "a"))
        await engine.load_weights(tiny_model("qwen3").named_parameters(), version=1)
        again = await engine.generate(ask(PROMPT, "a"))
        assert again.num_cached_tokens == 0
        assert again.policy_versions == (VersionSpan(1, 6),)

    with_engine(use)


def test_tied_weights_are_checked_together():
    tied = tiny_model("qwen2")
    embedding = tied.get_input_embeddings().weight.detach()

    async def use(engine: TorchEngine) -> None:
        assert "lm_head.weight" not in dict(tied.named_parameters())
        await engine.load_weights(tied.named_parameters(), version=1)
        both = [("model.embed_tokens.weight", embedding), ("lm_head.weight", embedding)]
        await engine.load_weights(both, version=2)
        with pytest.raises(ValueError, match="tied"):
            await engine.load_weights([both[0], ("lm_head.weight", embedding + 1)], version=3)
        assert (await engine.generate(ask(PROMPT))).policy_versions == (VersionSpan(2, 6),)

    with_engine(use, model=tiny_model("qwen2"))


def test_logits_that_are_not_finite_fail_their_request_and_leave_no_trace():
    model = tiny_model("qwen3")
    with torch.no_grad():
        model.get_input_embeddings().weight[50] = torch.nan

    async def use(engine: TorchEngine) -> None:
        good = asyncio.create_task(engine.generate(ask([1] * 20, "good", length=30, temperature=0)))
        with pytest.raises(NonFiniteLogitsError, match="session 'bad'"):
            await engine.generate(ask([50] * 20, "bad"))
        expected = list((await good).token_ids)
        for _ in range(3):  # the blocks are reused
            assert list((await engine.generate(ask([1] * 20, length=30, temperature=0))).token_ids) == expected

    with_engine(use, model=model)


def test_internal_error_reaches_all_waiting_requests_and_the_engine_continues():
    async def use(engine: TorchEngine) -> None:
        expected = await engine.generate(ask(PROMPT))
        decode = engine._scheduler.runner.decode
        engine._scheduler.runner.decode = lambda rows, shape, beside: 1 / 0
        results = await asyncio.gather(*[engine.generate(ask(PROMPT)) for _ in range(3)], return_exceptions=True)
        assert [type(result) for result in results] == [ZeroDivisionError] * 3
        engine._scheduler.runner.decode = decode
        assert (await engine.generate(ask(PROMPT))).token_ids == expected.token_ids

    with_engine(use)


def test_internal_error_while_queueing_reaches_the_request(monkeypatch):
    async def use(engine: TorchEngine) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(engine._scheduler.conversations, "begin", lambda conversation, token_ids: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await engine.generate(ask(PROMPT, "a"))
        assert len((await engine.generate(ask(PROMPT, "a"))).token_ids) == 6
        assert engine.metrics()["waiting_requests"] == 0

    with_engine(use)


def test_the_event_loop_stays_free_while_the_engine_computes():
    async def use(engine: TorchEngine) -> None:
        work, ticks = asyncio.create_task(engine.generate(ask(PROMPT, length=150))), 0
        while not work.done():
            await asyncio.sleep(0)
            ticks += 1
        assert ticks > 150

    with_engine(use)


def test_one_engine_serves_one_event_loop_after_another():
    engine = TorchEngine(tiny_model("qwen3"))
    first, second = (asyncio.run(engine.generate(ask(PROMPT))) for _ in range(2))
    assert first.token_ids == second.token_ids
    asyncio.run(engine.close())


def test_aborting_the_owner_of_a_shared_prompt_keeps_the_other_requests():
    async def use(engine: TorchEngine) -> None:
        await engine.pause("drain")
        works = [asyncio.create_task(engine.generate(ask(PROMPT * 4, f"s{i}", seed=i))) for i in range(3)]
        await asyncio.sleep(0)
        resumed = asyncio.create_task(engine.resume())
        await engine.abort("s0")
        await resumed
        assert (await works[0]).finish_reason is FinishReason.ABORT
        assert [len((await work).token_ids) for work in works[1:]] == [6, 6]

    with_engine(use)


def test_a_drain_does_not_wait_for_queued_requests():
    async def use(engine: TorchEngine) -> None:
        first = await engine.generate(ask(PROMPT, "holds the room"))
        waiting = asyncio.create_task(engine.generate(ask(PROMPT, "finds none")))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(1):  # far below STALL_S
            await engine.pause("drain")
        await engine.release("holds the room")
        await asyncio.sleep(0.05)
        assert not waiting.done()  # nothing is computed during a pause
        await engine.resume()
        assert (await waiting).token_ids == first.token_ids
        assert engine.metrics()["evicted_sessions"] == 0

    with_engine(use, deterministic=True, max_num_seqs=1)
