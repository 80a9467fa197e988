"""Results of MCP servers as the model reads them."""

from __future__ import annotations

import pytest
from mcp.types import CallToolResult, TextContent

from agentrl.tools.base import ToolError
from agentrl.tools.mcp.answers import read_result
from agentrl.tools.mcp.sessions import Pace


def result(*texts, **fields):
    return CallToolResult(content=[TextContent(type="text", text=text) for text in texts], **fields)


def test_texts_are_joined_by_line_breaks():
    assert read_result(result("a", "", "b")).text == "a\nb"


def test_an_error_without_a_text_is_an_error():
    with pytest.raises(ToolError, match="the tool failed without a message"):
        read_result(result(is_error=True))


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (['{"query": "q", "results": [{"title": "ä", "tags": [1]}]}'], '[{"title": "ä", "tags": [1]}]'),
        (["{'query': 'q', 'results': [{'title': 'it is'}]}", "more"], '[{"title": "it is"}]'),
        (['{"results": [1]}', '{"results": [2]}'], "[1][2]"),
        (["no results", '{"results": 3}'], 'no results\n{"results": 3}'),
        pytest.param(["(" * 10_000], "(" * 10_000, id="deep"),
    ],
)
def test_search_results_are_shown_as_by_verl(texts, shown):
    assert read_result(result(*texts), "search_results").text == shown


def test_as_many_calls_as_in_one_second_start_at_once_and_then_one_after_another():
    pace = Pace(4.0)
    assert [pace.reserve(100.0) for _ in range(7)] == pytest.approx([0, 0, 0, 0, 0.25, 0.5, 0.75])
    assert pace.reserve(101.0) == pytest.approx(0.0)
    assert [pace.reserve(200.0) for _ in range(5)] == pytest.approx([0, 0, 0, 0, 0.25])


def test_a_slow_pace_still_lets_one_call_start():
    pace = Pace(0.5)
    assert [pace.reserve(100.0) for _ in range(3)] == pytest.approx([0, 2.0, 4.0])
