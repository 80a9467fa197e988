"""The contract of every engine: `CONTRACT` lists the checks; each is an async function of a `Subject`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable

import pytest
from torch import Tensor

from agentrl.engines.base import Completion, Engine, FinishReason, GenerateRequest, SamplingParams
from agentrl.types.trajectory import VersionSpan

PROMPT = [5, 6, 7, 8, 9]


@dataclass(frozen=True)
class Subject:
    """An engine to be checked.

    Attributes:
        make: a new engine.
        weights: a full set of its weights, None for an engine without weights.
        stop_token_id: the token that ends its answers to `request()`.
        seeded: whether equal seeds give equal answers. If not, greedy answers are compared.
        counts_steps: whether its steps can be counted, because it computes in this process.
        exact: whether equal requests give bitwise equal log-probabilities with any cache content.
    """

    make: Callable[[], Engine | Awaitable[Engine]]
    weights: Callable[[], list[tuple[str, Tensor]]] | None
    stop_token_id: int
    seeded: bool = True
    counts_steps: bool = True
    exact: bool = True

    @property
    def repeatable(self) -> dict[str, object]:
        """Sampling that gives the same answer on every call."""
        return {} if self.seeded else {"temperature": 0.0}


def request(
    token_ids: Sequence[int] = PROMPT, session: str = "", deadline_s: float | None = None, **sampling: object
) -> GenerateRequest:
    params = {"max_new_tokens": 8, "seed": 1, "stop_token_ids": (96,), **sampling}
    return GenerateRequest(token_ids, SamplingParams(**params), session, deadline_s)


def long_request(
    session: str = "", seed: int = 1, deadline_s: float | None = None, **sampling: object
) -> GenerateRequest:
    """A request that still runs when the test interferes."""
    return request(session=session, max_new_tokens=200, seed=seed, deadline_s=deadline_s, **sampling)


def assert_well_formed(completion: Completion) -> None:
    assert len(completion.logprobs) == len(completion.token_ids)
    assert sum(span.num_tokens for span in completion.policy_versions) == len(completion.token_ids)
    assert all(logprob <= 0 for logprob in completion.logprobs)


async def started(engine: Engine, work: asyncio.Task[Completion]) -> None:
    """Wait until the engine computes tokens."""
    for _ in range(60_000):
        if engine.metrics()["sampled_tokens"] > 0 or engine.metrics().get("running_requests"):
            return
        assert not work.done()
        await asyncio.sleep(0.001)
    raise AssertionError("nothing was sampled")


def crowd(subject: Subject, engine: Engine) -> list[asyncio.Task[Completion]]:
    """Conversations s0, s1, …; enough that none ends before the test interferes."""
    requests = [long_request(f"s{i}", **subject.repeatable) for i in range(6)]
    return [asyncio.create_task(engine.generate(each)) for each in requests]


async def answers_are_well_formed(subject: Subject, engine: Engine) -> None:
    completions = await asyncio.gather(*[engine.generate(request(session=f"s{i}", seed=i)) for i in range(5)])
    for completion in completions:
        assert_well_formed(completion)
        assert 0 < len(completion.token_ids) <= 8
        assert completion.policy_versions[0] == VersionSpan(0, len(completion.token_ids))
        ended = completion.token_ids[-1] == subject.stop_token_id
        assert completion.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)


async def a_stop_token_ends_the_answer_and_is_kept(subject: Subject, engine: Engine) -> None:
    free = await engine.generate(request(stop_token_ids=(96,), **subject.repeatable))
    stop = free.token_ids[2]
    stopped = await engine.generate(request(stop_token_ids=(stop,), **subject.repeatable))
    assert stopped.finish_reason is FinishReason.STOP
    assert list(stopped.token_ids) == list(free.token_ids[: free.token_ids.index(stop) + 1])


async def the_length_limit_ends_the_answer(subject: Subject, engine: Engine) -> None:
    for number in range(10):
        completion = await engine.generate(request(session=f"session-{number}", max_new_tokens=3))
        if completion.finish_reason is not FinishReason.STOP:  # the model may sample its end before the limit
            break
    assert (len(completion.token_ids), completion.finish_reason) == (3, FinishReason.LENGTH)


async def an_impossible_request_is_refused_and_disturbs_nobody(subject: Subject, engine: Engine) -> None:
    good = asyncio.create_task(engine.generate(request()))
    with pytest.raises(ValueError, match="empty"):
        await engine.generate(request(token_ids=[]))
    assert_well_formed(await good)


async def a_seed_gives_the_same_answer(subject: Subject, engine: Engine) -> None:
    if not subject.seeded:
        return
    alone = await engine.generate(request(seed=7))
    together = await asyncio.gather(*[engine.generate(request(seed=seed)) for seed in (3, 7, 9)])
    assert list(together[1].token_ids) == list(alone.token_ids)


async def release_of_an_unknown_session_is_fine(subject: Subject, engine: Engine) -> None:
    await engine.release("nobody")
    await engine.abort("nobody")


async def a_session_goes_on_after_release(subject: Subject, engine: Engine) -> None:
    first = await engine.generate(request(session="a"))
    longer = [*PROMPT, *first.token_ids, 3, 4]
    kept = await engine.generate(request(longer, session="a", seed=2, **subject.repeatable))
    await engine.release("a")
    anew = await engine.generate(request(longer, session="a", seed=2, **subject.repeatable))
    assert list(kept.token_ids) == list(anew.token_ids)


async def abort_ends_one_session_only(subject: Subject, engine: Engine) -> None:
    doomed, *others = crowd(subject, engine)
    await started(engine, doomed)
    await engine.abort("s0")
    completion = await doomed
    assert completion.finish_reason is FinishReason.ABORT
    assert_well_formed(completion)
    assert FinishReason.ABORT not in [(await other).finish_reason for other in others]


async def a_deadline_ends_the_answer(subject: Subject, engine: Engine) -> None:
    await engine.pause("in_place")  # so that the deadline cannot be met
    completion = await engine.generate(long_request(deadline_s=0.005))
    assert completion.finish_reason is FinishReason.ABORT
    await engine.resume()


async def cancelling_stops_the_work(subject: Subject, engine: Engine) -> None:
    work = asyncio.create_task(engine.generate(long_request("gone", **subject.repeatable)))
    await started(engine, work)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert_well_formed(await engine.generate(request(session="gone")))
    await engine.pause("drain")  # returns only when nothing runs
    assert engine.metrics()["sampled_tokens"] < 200


async def drain_finishes_what_runs_and_holds_what_comes(subject: Subject, engine: Engine) -> None:
    running = asyncio.create_task(engine.generate(request(**subject.repeatable)))
    await asyncio.sleep(0)
    await engine.pause("drain")
    held = asyncio.create_task(engine.generate(request(**subject.repeatable)))
    await asyncio.sleep(0.005)
    assert running.done()
    assert not held.done()
    await engine.resume()
    assert list((await held).token_ids) == list((await running).token_ids)


async def in_place_stops_and_goes_on(subject: Subject, engine: Engine) -> None:
    expected = await engine.generate(long_request(**subject.repeatable))
    work = asyncio.create_task(engine.generate(long_request(**subject.repeatable)))
    await asyncio.sleep(0.002)
    await engine.pause("in_place")
    before = engine.metrics()["sampled_tokens"]
    await asyncio.sleep(0.005)
    assert engine.metrics()["sampled_tokens"] == before
    await engine.resume()
    assert list((await work).token_ids) == list(expected.token_ids)


async def new_weights_carry_their_version(subject: Subject, engine: Engine) -> None:
    weights = subject.weights() if subject.weights else []
    await engine.load_weights(iter(weights), 3)
    completion = await engine.generate(request())
    assert list(completion.policy_versions) == [VersionSpan(3, len(completion.token_ids))]


async def wrong_weights_change_nothing(subject: Subject, engine: Engine) -> None:
    if subject.weights is None:
        return
    before = await engine.generate(request(**subject.repeatable))
    name, tensor = subject.weights()[0]
    for wrong in ([(name, tensor * 2), ("model.nonsense", tensor)], [(name, tensor[1:])], [(name, tensor)] * 2):
        with pytest.raises(ValueError, match="weight"):
            await engine.load_weights(iter(wrong), 9)
    after = await engine.generate(request(**subject.repeatable))
    assert list(after.token_ids) == list(before.token_ids)
    assert list(after.logprobs) == pytest.approx(list(before.logprobs), rel=0, abs=0 if subject.exact else 1e-6)
    assert after.policy_versions[0].version == 0


async def close_ends_everything(subject: Subject, engine: Engine) -> None:
    work = crowd(subject, engine)
    await started(engine, work[0])
    await engine.close()
    assert {(await each).finish_reason for each in work} == {FinishReason.ABORT}
    await engine.close()
    await engine.release("late")
    assert (await engine.generate(request())).finish_reason is FinishReason.ABORT


async def metrics_count(subject: Subject, engine: Engine) -> None:
    completion = await engine.generate(request())
    metrics = engine.metrics()
    assert metrics["prompt_tokens"] == len(PROMPT)
    assert metrics["sampled_tokens"] == len(completion.token_ids)
    steps = {"decode_steps", "prefill_steps"} if subject.counts_steps else set()
    assert {"cached_tokens", "forwarded_tokens"} | steps <= metrics.keys()


CONTRACT = [
    answers_are_well_formed,
    a_stop_token_ends_the_answer_and_is_kept,
    the_length_limit_ends_the_answer,
    an_impossible_request_is_refused_and_disturbs_nobody,
    a_seed_gives_the_same_answer,
    release_of_an_unknown_session_is_fine,
    a_session_goes_on_after_release,
    abort_ends_one_session_only,
    a_deadline_ends_the_answer,
    cancelling_stops_the_work,
    drain_finishes_what_runs_and_holds_what_comes,
    in_place_stops_and_goes_on,
    new_weights_carry_their_version,
    wrong_weights_change_nothing,
    close_ends_everything,
    metrics_count,
]


def check_contract(check: Callable[[Subject, Engine], object], subject: Subject) -> None:
    """Run one check on a new engine; no thread may outlive the engine."""

    async def run() -> None:
        made = subject.make()
        engine = await made if isawaitable(made) else made
        try:
            async with asyncio.timeout(20):
                await check(subject, engine)
        finally:
            await engine.close()

    threads = set(threading.enumerate())
    asyncio.run(run())
    left = set(threading.enumerate()) - threads
    # tqdm's monitor thread, started once per process
    assert [thread for thread in left if type(thread).__name__ != "TMonitor"] == []
