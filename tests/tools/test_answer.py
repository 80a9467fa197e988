from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vision_models import picture

from agentrl.tools.base import ToolError, ToolResponse
from agentrl.tools.result import bounded, read_answer
from agentrl.utils.images import data_url


@pytest.mark.parametrize(
    ("returned", "text", "reward", "metrics"),
    [
        ("plain", "plain", 0.0, {}),
        ({"a": "é"}, '{"a": "é"}', 0.0, {}),
        ([1, 2], "[1, 2]", 0.0, {}),
        (None, "None", 0.0, {}),
        (3.5, "3.5", 0.0, {}),
        (b"bytes", "bytes", 0.0, {}),
        (ToolResponse("r"), "r", 0.0, {}),
        (ToolResponse(), "", 0.0, {}),
        (("t",), "t", 0.0, {}),
        ((ToolResponse("t"), 0.5), "t", 0.5, {}),
        (("t", None, None), "t", 0.0, {}),
        (("t", True, {"m": 1}), "t", 1.0, {"m": 1}),
    ],
)
def test_each_return_value_of_a_tool_is_read(returned, text, reward, metrics):
    answer = read_answer(returned)
    assert (answer.text, answer.reward, answer.metrics, answer.images) == (text, reward, metrics, [])


@pytest.mark.parametrize("given", [picture(), [picture()], [{"bytes": picture()}], [data_url(picture())]])
def test_tool_images_become_bytes(given):
    answer = read_answer((ToolResponse("seen", image=given), 0.5))
    assert (answer.text, answer.reward, answer.images) == ("seen", 0.5, [picture()])


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            ToolResponse(image=[object()]),
            "cannot be used: expected bytes, a path, a data URL or a Pillow image, got obj",
        ),
        (ToolResponse(image=[picture()[:60]]), "the tool returned an image that cannot be used: it"),
        (ToolResponse("x", video=[b"v"]), "the tool returned a video; videos are not supported"),
    ],
)
def test_unsupported_content_is_a_tool_error(response, expected):
    with pytest.raises(ToolError, match=expected):
        read_answer(response)


@pytest.mark.parametrize("returned", [b"\xff\xfe", (), ("a", 0, {}, 1), ("a", "much"), ("a", float("nan"))])
def test_invalid_return_values_are_tool_errors(returned):
    with pytest.raises(ToolError):
        read_answer(returned)


def cut(text, limit, side):
    half = limit // 2
    return {"left": text[-limit:], "right": text[:limit], "middle": text[:half] + text[-half:]}[side]


@given(st.text(max_size=60), st.integers(2, 20), st.sampled_from(["left", "middle", "right"]))
def test_early_truncation_does_not_change_the_result(text, limit, side):
    assert len(bounded(text, limit)) <= 2 * limit
    assert cut(bounded(text, limit), limit, side) == cut(text, limit, side)


def test_half_surrogates_become_question_marks():
    assert bounded("a\ud800b", 10) == "a?b"
