"""The engine on a real SGLang server: the contract, log-probabilities against transformers, and killed servers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import torch
from engine_contract import CONTRACT, Subject, check_contract
from engine_models import tiny_model

from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.base import Completion, FinishReason, GenerateRequest, SamplingParams
from agentrl.engines.sglang.loader import load_sglang_engine
from agentrl.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.sglang]

CONTEXT = 256


async def engine_at(model, run_dir, **sglang):
    rollout = RolloutConfig(engine="sglang", sglang=sglang)
    return await load_sglang_engine(ModelConfig(path=str(model)), rollout, CONTEXT, run_dir)


@asynccontextmanager
async def opened(*args, timeout_s: float = 120, **sglang):
    engine = await engine_at(*args, **sglang)
    try:
        async with asyncio.timeout(timeout_s):
            yield engine
    finally:
        await engine.close()


def ask(token_ids, session: str = "", deadline_s: float | None = None, **sampling: object) -> GenerateRequest:
    return GenerateRequest(token_ids, SamplingParams(**{"max_new_tokens": 12, **sampling}), session, deadline_s)


def reference_logprobs(context, token_ids, temperature: float, model=None) -> list[float]:
    """By transformers, from softmax(logits / temperature); of the initial model unless another is given."""
    with torch.no_grad():
        logits = (model or tiny_model("qwen3"))(torch.tensor([[*context, *token_ids]])).logits[0]
    logprobs = (logits[len(context) - 1 : -1].double() / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(token_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract_on_a_real_server(check, sglang_server, sglang_model, tmp_path):
    subject = Subject(
        lambda: engine_at(sglang_model, tmp_path, urls=[sglang_server.url]),
        lambda: list(tiny_model("qwen3").named_parameters()),
        stop_token_id=96,
        seeded=False,  # SGLang's sampling_seed has no effect on the CPU
        counts_steps=False,
        exact=False,  # cached prefixes and concurrent requests change the last bits
    )
    check_contract(check, subject)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_equal_transformers_over_several_turns(sglang_server, sglang_model, tmp_path, temperature):
    async def run():
        async with opened(sglang_model, tmp_path, urls=[sglang_server.url]) as engine:
            context, turns = [5, 6, 7, 8, 9], []
            for _ in range(4):
                completion = await engine.generate(ask(list(context), "a", temperature=temperature))
                turns.append((list(context), completion))
                context += [*completion.token_ids, 3, 4]
            return turns

    for context, completion in asyncio.run(run()):
        expected = reference_logprobs(context, list(completion.token_ids), temperature or 1.0)
        assert list(completion.logprobs) == pytest.approx(expected, rel=0, abs=1e-5)


def test_later_turns_are_served_from_the_cache(sglang_server, sglang_model, tmp_path):
    async def run():
        async with opened(sglang_model, tmp_path, urls=[sglang_server.url]) as engine:
            context = [5, 6, 7, 8, 9] * 10
            for _ in range(4):
                completion = await engine.generate(ask(list(context), "a"))
                expected_cached = len(context) + len(completion.token_ids) - 1  # the last sampled token has no KV
                context += [*completion.token_ids, 3, 4]
                later = await engine.generate(ask(list(context), "a", max_new_tokens=1))
                assert later.num_cached_tokens >= expected_cached
            return engine.metrics()

    assert asyncio.run(run())["later_cached_share"] > 0.9


async def cut_off(generate: Callable[[float], Awaitable[Completion]], after_s: float) -> Completion:
    """Generate until a request is cut off between its first and its last token, which takes longer on a busy machine.

    Args:
        generate: generates with a time after which the request is cut off.
        after_s: the first time.
    """
    for _ in range(40):
        completion = await generate(after_s)
        if completion.finish_reason is not FinishReason.ABORT:
            after_s *= 0.6
        elif completion.token_ids:
            return completion
        else:
            after_s *= 1.5
    raise AssertionError("no request was cut off")


def test_a_deadline_and_an_abort_keep_the_tokens_so_far(sglang_server, sglang_model, tmp_path):
    async def run():
        async with opened(sglang_model, tmp_path, urls=[sglang_server.url]) as engine:
            greedy = {"temperature": 0.0, "max_new_tokens": 230}
            began = time.monotonic()
            full = await engine.generate(ask([5, 6, 7], **greedy))
            half_s = (time.monotonic() - began) / 2

            async def aborted(after_s: float) -> Completion:
                work = asyncio.create_task(engine.generate(ask([5, 6, 7], "a", **greedy)))
                await asyncio.sleep(after_s)
                await engine.abort("a")
                return await work

            late = await cut_off(lambda after_s: engine.generate(ask([5, 6, 7], deadline_s=after_s, **greedy)), half_s)
            return full, [late, await cut_off(aborted, half_s)]

    full, cut = asyncio.run(run())
    for completion in cut:
        assert 0 < len(completion.token_ids) < len(full.token_ids)
        assert list(completion.token_ids) == list(full.token_ids)[: len(completion.token_ids)]


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_deadline_in_a_pause_is_kept(sglang_server, sglang_model, tmp_path, mode):
    async def run():
        async with opened(sglang_model, tmp_path, urls=[sglang_server.url]) as engine:
            request = ask([5, 6, 7], temperature=0.0, max_new_tokens=230, deadline_s=1)
            work = [asyncio.create_task(engine.generate(request)) for _ in range(12)]
            await asyncio.sleep(0.05)
            await engine.pause(mode)
            work.append(asyncio.create_task(engine.generate(request)))
            *running, cut = await asyncio.wait_for(asyncio.gather(*work), 60)  # a request that is held forever fails
            await engine.resume()
            return running, cut, await engine.generate(ask([5, 6, 7]))

    running, cut, after = asyncio.run(run())
    assert cut.finish_reason is FinishReason.ABORT
    # on a busy machine, a request may end before the pause
    assert {completion.finish_reason for completion in running} <= {FinishReason.ABORT, FinishReason.STOP}
    assert len(after.token_ids) > 0


def test_concurrent_requests_get_their_own_answers(sglang_server, sglang_model, tmp_path):
    async def run():
        async with opened(sglang_model, tmp_path, urls=[sglang_server.url], max_connections=64) as engine:
            asked = [[5 + i % 60, 6 + i // 60] for i in range(200)]
            return asked, await asyncio.gather(*[engine.generate(ask(each, f"{i}")) for i, each in enumerate(asked)])

    asked, completions = asyncio.run(run())
    for context, completion in list(zip(asked, completions, strict=True))[::20]:
        expected = reference_logprobs(context, list(completion.token_ids), 1.0)
        assert list(completion.logprobs) == pytest.approx(expected, rel=0, abs=1e-5)


def test_stop_strings_keep_their_match(sglang_server, sglang_model, tmp_path):
    async def run():
        async with opened(sglang_model, tmp_path, urls=[sglang_server.url]) as engine:
            free = await engine.generate(ask([5, 6, 7], temperature=0.0))
            word = f"w{free.token_ids[3]}"
            return free, word, await engine.generate(ask([5, 6, 7], temperature=0.0, stop=(word,)))

    free, word, stopped = asyncio.run(run())
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.matched_stop == word
    assert list(stopped.token_ids) == list(free.token_ids)[: list(free.token_ids).index(int(word[1:])) + 1]


def test_a_server_that_holds_weights_of_an_earlier_run_gets_those_of_the_model(sglang_server, sglang_model, tmp_path):
    from test_real_transfer import policy

    async def run():
        async with opened(sglang_model, tmp_path, urls=[sglang_server.url]) as engine:
            await engine.load_weights(iter(policy(9).named_parameters()), 3)
        completions = []
        for _ in range(2):
            async with opened(sglang_model, tmp_path, urls=[sglang_server.url]) as engine:
                completions.append(await engine.generate(ask([5, 6, 7])))
        return completions

    for completion in asyncio.run(run()):
        expected = reference_logprobs([5, 6, 7], list(completion.token_ids), 1.0)
        assert list(completion.logprobs) == pytest.approx(expected, rel=0, abs=1e-5)
        assert [span.version for span in completion.policy_versions] == [0]


def test_a_server_with_another_model_is_refused(sglang_server, sglang_model, tmp_path):
    other = tmp_path / "other"
    tiny_model("qwen3").save_pretrained(other)
    with pytest.raises(ConfigError, match=r"serves '.*qwen3', but model.path is '.*other'"):
        asyncio.run(engine_at(other, tmp_path, urls=[sglang_server.url]))


@pytest.mark.nightly
def test_a_server_that_hangs_loses_no_session(sglang_model, tmp_path):
    """Each of 30 conversations runs three turns while the server's processes are stopped."""
    from sglang_server import require_sglang
    from test_real_transfer import policy
    from test_server import group_of

    require_sglang()

    async def converse(engine, number: int):
        context, turns = [5 + number, 6, 7], []
        for _ in range(3):
            completion = await engine.generate(ask(list(context), f"{number}", max_new_tokens=40))
            turns.append((list(context), completion))
            context += [*completion.token_ids, 3, 4]
        return turns

    async def run():
        sglang = {"health_timeout_s": 8, "weight_transfer": "group"}
        async with opened(sglang_model, tmp_path, timeout_s=400, **sglang) as engine:
            await engine.load_weights(iter(model.named_parameters()), 6)
            work = [asyncio.create_task(converse(engine, i)) for i in range(30)]
            await asyncio.sleep(0.3)
            pid = engine.replicas[0].process.pid
            assert len(group_of(pid)) >= 4  # the watcher, the server, its scheduler and detokenizer
            os.killpg(pid, signal.SIGSTOP)
            talks = await asyncio.gather(*work)
            return talks, engine.metrics(), [pid, engine.replicas[0].process.pid]

    model = policy(6)
    talks, metrics, pids = asyncio.run(run())
    assert [group_of(pid) for pid in pids] == [[], []]
    completions = [completion for turns in talks for _, completion in turns]
    assert metrics["num_restarts"] == 1
    assert metrics["num_retried"] > 0
    assert metrics["sampled_tokens"] == sum(len(completion.token_ids) for completion in completions)
    assert {span.version for completion in completions for span in completion.policy_versions} == {6}
    for context, completion in [turns[-1] for turns in talks[::7]]:
        expected = reference_logprobs(context, list(completion.token_ids), 1.0, model)
        assert list(completion.logprobs) == pytest.approx(expected, rel=0, abs=1e-5)
