"""docs/gateway.md: its tables have every key without effect, every refused key, every endpoint and every error."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl.gateway.base import Refusal, RequestError
from agentrl.gateway.dialects import chat_completions, messages, responses
from agentrl.gateway.dialects.base import failure_of
from agentrl.gateway.dialects.endpoints import COUNT_TOKENS, MODELS, TURNS

PAGE = (Path(__file__).parents[2] / "docs/gateway.md").read_text(encoding="utf-8")
DIALECTS = {"Chat Completions": chat_completions, "Responses": responses, "Messages": messages}


def rows(*header: str) -> list[list[str]]:
    """The cells of the table with this header."""
    (table,) = re.findall(
        rf"^{re.escape('| ' + ' | '.join(header) + ' |')}\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE
    )
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]


def keys_of(table: list[list[str]], dialect: str) -> set[str]:
    found = [row[1] for row in table if row[0] == "all" or dialect in row[0]]
    return {key for cell in found for key in re.findall(r"`([\w.]+)`", cell)}


def test_keys_without_effect_are_listed():
    table = rows("dialect", "keys")
    for name, module in DIALECTS.items():
        inner = getattr(module, "_NO_EFFECT_IN", {})
        expected = {*module._NO_EFFECT, *(f"{key}.{each}" for key, values in inner.items() for each in values)}
        assert keys_of(table, name) - {"strict"} == expected, name


def test_refused_keys_are_listed():
    table = rows("dialect", "keys", "reason")
    for name, module in DIALECTS.items():
        assert set(module._REFUSED) <= keys_of(table, name), name


def test_endpoints_are_listed():
    named = set(re.findall(r"/v1/([\w/]+)", " ".join(row[0] for row in rows("endpoint", "dialect"))))
    assert named == {*TURNS, COUNT_TOKENS, MODELS, f"{MODELS}/NAME"}


def test_errors_are_listed():
    listed = {
        (row[1], code)
        for row in rows("problem", "status", "Chat Completions, Responses: `code`", "Messages: `type`")
        for code in re.findall(r"`(\w+)`", row[2])
    }
    for refusal in Refusal:
        failure = failure_of(RequestError(refusal, ""))
        assert (str(failure.status), failure.code) in listed
