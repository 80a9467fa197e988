"""Our requests in SGLang's format, and its answers as completions."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engines.base import FinishReason, GenerateRequest, SamplingParams
from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.requests import Terms, read_completion
from agentrl.types.trajectory import VersionSpan

TERMS = Terms(vocabulary=97, max_sequence_length=200, max_input_tokens=250)


def request(token_ids=(5, 6, 7), **sampling) -> GenerateRequest:
    return GenerateRequest(token_ids, SamplingParams(**sampling))


def answer(token_ids=(3, 4), spans=((0, 2),), finish=None, **meta) -> dict[str, object]:
    """An answer as SGLang 0.5.21 writes it, without unused fields."""
    starts = [sum(number for _, number in spans[:i]) for i in range(len(spans))]
    said = {
        "finish_reason": finish or {"type": "length", "length": len(token_ids)},
        "prompt_tokens": 3,
        "completion_tokens": len(token_ids),
        "cached_tokens": 2,
        "output_token_logprobs": [[-0.25 * token, token, None] for token in token_ids],
        "weight_versions": [
            {"version": str(version), "start": start, "end": start + number}
            for (version, number), start in zip(spans, starts, strict=True)
        ],
    }
    return {"output_ids": list(token_ids), "meta_info": {**said, **meta}}


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (request([]), "the context is empty"),
        (request([5, 97]), "outside the vocabulary of 97"),
        (request([-1]), "outside the vocabulary of 97"),
        (request([5] * 200), "has 200 tokens and leaves no room in 200"),
        (request(temperature=-1.0), "temperature"),
        (request(max_new_tokens=0), "max_new_tokens"),
        (GenerateRequest([5], images=("data:image/png;base64,",)), "does not accept images"),
        (request(stop=("x",)), "stop strings need a tokenizer"),
    ],
)
def test_requests_that_would_crash_a_server_are_never_sent(asked, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(TERMS, stop_strings=False).check(asked)


def test_the_body_has_every_request_option():
    asked = request(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, max_new_tokens=4, stop=("x",), stop_token_ids=(9,))
    assert TERMS.body(asked, "r1") == {
        "input_ids": (5, 6, 7),
        "rid": "r1",
        "return_logprob": True,
        "sampling_params": {
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.1,
            "max_new_tokens": 4,
            "stop": ["x"],
            "stop_token_ids": [9],
            "no_stop_trim": True,
        },
    }


def test_requests_use_only_features_of_the_server():
    asked = GenerateRequest([5], SamplingParams(seed=2**63 + 5), priority=-3, images=("data:,",))
    assert not {"priority", "return_routed_experts"} & TERMS.body(asked, "r").keys()
    body = Terms(97, 200, 250, priority=True, seeded=True, images=True, routed_experts=(2, 2)).body(asked, "r")
    assert (body["priority"], body["image_data"], body["return_routed_experts"]) == (-3, ["data:,"], True)
    assert body["sampling_params"]["sampling_seed"] == 5  # SGLang accepts signed 64-bit integers


@pytest.mark.parametrize(("length", "asked", "room"), [(3, None, 197), (3, 8, 8), (199, 8, 1), (199, None, 1)])
def test_no_limit_means_the_rest_of_the_context(length, asked, room):
    assert TERMS.room(request([5] * length, max_new_tokens=asked)) == room


def test_context_over_the_server_limit_has_no_room():
    narrow = Terms(97, max_sequence_length=256, max_input_tokens=250)
    assert narrow.room(request([5] * 249)) == 7
    assert narrow.room(request([5] * 250)) == 0


def test_a_completion_is_read():
    completion = read_completion(answer(spans=((4, 1), (5, 1))), request())
    assert completion.token_ids == [3, 4]
    assert completion.logprobs == [-0.75, -1.0]
    assert completion.policy_versions == [VersionSpan(4, 1), VersionSpan(5, 1)]
    assert (completion.finish_reason, completion.num_cached_tokens) == (FinishReason.LENGTH, 2)


@pytest.mark.parametrize(
    ("finish", "reason", "stop"),
    [
        ({"type": "stop", "matched": 4}, FinishReason.STOP, None),
        ({"type": "stop", "matched": "end"}, FinishReason.STOP, "end"),
        ({"type": "length", "length": 2}, FinishReason.LENGTH, None),
        ({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, FinishReason.ABORT, None),
    ],
)
def test_finish_reasons_are_mapped(finish, reason, stop):
    completion = read_completion(answer(finish=finish), request())
    assert (completion.finish_reason, completion.matched_stop) == (reason, stop)


def test_an_abort_in_the_queue_has_no_counts_of_the_context():
    said = answer((), (), {"type": "abort", "message": "Abort in waiting queue"})
    del said["meta_info"]["prompt_tokens"], said["meta_info"]["cached_tokens"]
    said["meta_info"]["weight_versions"] = [{"version": "0", "start": 0, "end": 0}]
    completion = read_completion(said, request(), (2, 2))
    assert (completion.token_ids, completion.policy_versions) == ([], [])
    assert completion.finish_reason is FinishReason.ABORT
    assert completion.routed_experts is None


def test_routed_experts_are_read():
    experts = np.arange(4 * 2 * 2, dtype="<i4")
    said = answer(routed_experts=base64.b64encode(experts.tobytes()).decode())
    assert read_completion(said, request(), (2, 2)).routed_experts.flatten().tolist() == experts.tolist()
    with pytest.raises(ServerError, match="expected routed experts"):
        read_completion(answer(), request(), (2, 2))


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (answer(finish={"type": "abort", "message": "out of memory", "status_code": 500}), "aborted a request: out of"),
        (answer(completion_tokens=3), "has 2 tokens, but reports 3"),
        (answer(output_token_logprobs=[[-1.0, 3, None]]), "1 log-probabilities"),
        (answer(output_token_logprobs=[[-1.0, 3, None], [-1.0, 5, None]]), "do not belong to the tokens"),
        (answer(output_token_logprobs=[[None, 3, None], [-1.0, 4, None]]), "output_token_logprobs.0.0"),
        (answer(spans=((0, 1),)), "1 weight versions"),
        (answer(prompt_tokens=2), "read 2 of 3 tokens"),
        (answer(weight_versions=[{"version": "default", "start": 0, "end": 2}]), "of version 'default'"),
        (answer(finish={"type": "gone"}), "finish_reason.type"),
        ({}, "output_ids"),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(said, complaint):
    with pytest.raises(ServerError, match=complaint):
        read_completion(said, request())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=4), st.integers(-2, 2), st.integers(-2, 2))
def test_every_token_has_a_version_and_a_logprob_or_there_is_no_completion(spans, more_said, more_logprobs):
    tokens = [2 + i for i in range(sum(number for _, number in spans))]
    logprobs = [[-1.0, token, None] for token in [*tokens, 7, 7][: max(0, len(tokens) + more_logprobs)]]
    said = answer(tokens, spans, completion_tokens=len(tokens) + more_said, output_token_logprobs=logprobs)
    if more_said == 0 and len(logprobs) == len(tokens):
        completion = read_completion(said, request())
        assert len(completion.logprobs) == len(tokens) == sum(s.num_tokens for s in completion.policy_versions)
    else:
        with pytest.raises(ServerError):
            read_completion(said, request())
