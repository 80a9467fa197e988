"""Guarantees specific to the scripted engine; the contract suite covers the others."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentrl.engines.base import FinishReason, GenerateRequest, SamplingParams
from agentrl.engines.scripted import ScriptedEngine


class Characters:
    """A tokenizer with one token per character."""

    def encode(self, text, *, add_special_tokens):
        assert not add_special_tokens
        return [ord(letter) for letter in text]

    def decode(self, token_ids, *, skip_special_tokens):
        return "".join(map(chr, token_ids))


def ask(engine: ScriptedEngine, text: str = "hello", **sampling: object):
    request = GenerateRequest([ord(letter) for letter in text], SamplingParams(**sampling))
    return asyncio.run(engine.generate(request))


def test_a_function_of_the_request_answers_ids_and_the_stop_token_is_added():
    engine = ScriptedEngine(lambda request: [len(request.token_ids), 7], stop_token_id=99, logprob=-0.5)
    completion = ask(engine)
    assert completion.token_ids == [5, 7, 99]
    assert completion.logprobs == [-0.5] * 3
    assert completion.finish_reason is FinishReason.STOP
    assert ask(engine, stop_token_ids=(7,)).token_ids == [5, 7]


def test_a_function_of_the_text_answers_text():
    engine = ScriptedEngine(lambda text: text[::-1], tokenizer=Characters(), of_text=True)
    assert ask(engine, "abc").token_ids == [ord(letter) for letter in "cba"]


def test_scripted_list_is_used_in_order():
    engine = ScriptedEngine([[1], "b"], tokenizer=Characters())
    assert [ask(engine).token_ids for _ in range(3)] == [[1], [98], [1]]


def test_limits_and_stop_strings_cut_as_sampling_would():
    engine = ScriptedEngine(["one two three"], tokenizer=Characters(), stop_token_id=0)
    short = ask(engine, max_new_tokens=3)
    assert (len(short.token_ids), short.finish_reason) == (3, FinishReason.LENGTH)
    stopped = ask(engine, stop=("wo",))
    assert Characters().decode(stopped.token_ids, skip_special_tokens=False) == "one two"
    assert stopped.matched_stop == "wo"


def test_images_are_refused():
    engine = ScriptedEngine([[1]])
    with pytest.raises(ValueError, match="does not support images"):
        asyncio.run(engine.generate(GenerateRequest([1], images=["data:image/png;base64,"])))


def test_text_without_a_tokenizer_is_refused():
    with pytest.raises(ValueError, match="tokenizer"):
        ask(ScriptedEngine(["text"]))


def test_calls_cost_microseconds():
    engine, request = ScriptedEngine([[1, 2, 3]], stop_token_id=9), GenerateRequest([1], SamplingParams(), "s")

    async def many() -> float:
        start = time.process_time()
        for _ in range(2000):
            await engine.generate(request)
        return (time.process_time() - start) / 2000

    assert asyncio.run(many()) < 200e-6  # measured: about 5
