"""The engine's cache counters: for later turns, they count only tokens that a cache can hold."""

from __future__ import annotations

from agentrl.engines.base import Completion, FinishReason, GenerateRequest
from agentrl.engines.sglang.counters import RequestCounters
from agentrl.types.trajectory import VersionSpan


def answer(tally: RequestCounters, session: str, num_context: int, num_sampled: int, num_cached: int) -> None:
    completion = Completion(
        [1] * num_sampled, [0.0] * num_sampled, [VersionSpan(0, num_sampled)], FinishReason.STOP, num_cached
    )
    tally.answered(GenerateRequest([1] * num_context, session=session), completion)


def test_tool_answers_count_as_new_tokens_and_not_as_cache_misses():
    tally = RequestCounters()
    answer(tally, "a", num_context=40, num_sampled=10, num_cached=16)  # a sibling had cached the shared prefix
    answer(tally, "a", num_context=60, num_sampled=5, num_cached=49)
    metrics = tally.metrics()
    assert (metrics["later_prompt_tokens"], metrics["later_cached_tokens"]) == (50, 49)
    assert (metrics["prompt_tokens"], metrics["cached_tokens"]) == (100, 65)
    assert metrics["later_cached_share"] == 49 / 50


def test_finished_and_unnamed_conversations_start_over():
    tally = RequestCounters()
    for _ in range(2):
        answer(tally, "a", num_context=40, num_sampled=10, num_cached=0)
        tally.forget("a")
        answer(tally, "", num_context=40, num_sampled=10, num_cached=0)
    assert tally.metrics()["later_prompt_tokens"] == 0


def test_counters_handle_parallel_requests_and_shorter_histories():
    tally = RequestCounters()
    answer(tally, "a", num_context=40, num_sampled=10, num_cached=0)
    answer(tally, "a", num_context=60, num_sampled=10, num_cached=58)
    answer(tally, "a", num_context=30, num_sampled=10, num_cached=20)
    metrics = tally.metrics()
    assert (metrics["later_prompt_tokens"], metrics["later_cached_tokens"]) == (50 + 30, 50 + 20)
