"""Servers as they are published: one from PyPI, with the SDK of 2025, and one from npm."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from mcp_builders import load, run
from tool_builders import call

from agentrl.types.rollout import Outcome

EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"


@pytest.mark.slow
def test_a_server_from_pypi(tmp_path, peer_python):
    server = {"name": "time", "command": str(peer_python("mcp_time")), "args": ["-m", "mcp_server_time"]}
    tools = load(tmp_path, {"mcp": server, "start_timeout_s": 60})
    assert [tool.name for tool in tools] == ["get_current_time", "convert_time"]
    zones = {"source_timezone": "Europe/Berlin", "target_timezone": "Asia/Tokyo"}
    results, metrics = run(
        tools,
        call("convert_time", time="12:00", **zones),
        call("convert_time", time="noon", **zones),
        call("get_current_time", timezone="Europe/Nowhere"),
        call("get_current_time"),
    )
    assert json.loads(results[0].text)["target"]["timezone"] == "Asia/Tokyo"
    assert [result.outcome for result in results] == [
        *(Outcome.OK, Outcome.TOOL_ERROR, Outcome.TOOL_ERROR, Outcome.FORMAT_ERROR)
    ]
    assert metrics["mcp_sessions_opened"] == 1


@pytest.fixture
def npx():
    """Skips tests that need Node.js if it is not installed; in CI they fail instead."""
    if shutil.which("npx") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("npx is not installed: make node")


@pytest.mark.slow
@pytest.mark.usefixtures("npx")
def test_a_server_from_npm(tmp_path):
    server = {"name": "everything", "command": "npx", "args": ["-y", EVERYTHING]}
    tools = load(tmp_path, {"mcp": server, "start_timeout_s": 180, "prefix": "e_"})
    assert {"e_echo", "e_get-sum"} <= {tool.name for tool in tools}
    results, metrics = run(
        tools,
        call("e_echo", message="ü"),
        call("e_get-sum", a=2, b=3),
        call("e_get-structured-content", location="New York"),
        call("e_get-resource-links"),
        call("e_echo", message=3),
        call("e_get-tiny-image"),
    )
    assert [result.outcome for result in results] == [*[Outcome.OK] * 4, Outcome.FORMAT_ERROR, Outcome.TOOL_ERROR]
    assert [results[0].text, results[1].text] == ["Echo: ü", "The sum of 2 and 3 is 5."]
    assert json.loads(results[2].text)["conditions"] == "Cloudy"
    assert "[resource Blob Resource 1: demo://" in results[3].text
    assert "an image that cannot be used" in results[5].text  # a chunk of its PNG has a wrong checksum
    assert metrics["mcp_sessions_opened"] == 1
