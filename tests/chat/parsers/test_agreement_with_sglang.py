"""Agreement of our parsers with SGLang's detectors, which share no code, on 10,000 generated turns per format.

If the parsers differ on a turn, a known difference below must explain it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeGuard

import pytest
from parser_contract import CONTENTS, Call, Format, complete, schemas_of
from pydantic import JsonValue
from sglang_server import require_sglang
from test_parser_contract import FORMATS

from agentrl.chat.parsers import sglang

pytestmark = [pytest.mark.slow, pytest.mark.sglang]

NUM_TURNS = 10_000
WORDS = (
    "Paris",
    "",
    "a",
    "true",
    "null",
    "12",
    "-1.5",
    "é 日本",
    "two\nlines",
    'say "hi"',
    "it's",
    "\\",
    "{}",
    "[1, 2]",
)
WORDS += ("<b>", "</tool_call>", "f(a=1)", "; ", "a, b", " x ", "\t")
KEYS = ("q", "count", "the_text", "x1")


@dataclass(frozen=True)
class Turn:
    """A generated turn, and what both parsers read in it."""

    text: str
    calls: Sequence[Call]
    ours: object = None
    theirs: object = None


def turns(form: Format, count: int) -> Iterator[Turn]:
    """Turns as the models write them, with one to three calls."""
    random = Random(form.name)
    for _ in range(count):
        names = random.sample(["f", "get_weather", "g2"], random.choice([1, 1, 2, 3]) if form.parallel else 1)
        calls = [(name, _arguments(random)) for name in names]
        if all(map(form.fits, calls)):
            yield Turn(form.write(random.choice(CONTENTS[:2]), calls), calls)


def _arguments(random: Random) -> dict[str, JsonValue]:
    return {key: _value(random, 0) for key in random.sample(KEYS, random.randrange(4))}


def _value(random: Random, depth: int) -> JsonValue:
    kind = random.randrange(10 if depth < 2 else 8)
    if kind < 5:
        return random.choice(WORDS)
    if kind < 8:
        return random.choice([0, 7, -3, 2.5, True, False, None])
    if kind == 8:
        return [_value(random, depth + 1) for _ in range(random.randrange(3))]
    return {random.choice(KEYS): _value(random, depth + 1) for _ in range(random.randrange(3))}


def compared(form: Format, detector: str) -> Iterator[Turn]:
    """The turns on which the parsers differ."""
    for turn in turns(form, NUM_TURNS):
        ours = complete(form.parser(turn.calls).parse(turn.text))
        found = sglang.detect(
            detector, AROUND.get(detector, "{}").format(turn.text), sglang.read_tools(schemas_of(turn.calls))
        )
        theirs = [(name, _json(arguments)) for name, arguments in found.calls] if found else []
        if ours != theirs:
            yield Turn(turn.text, turn.calls, ours, theirs)


def _json(arguments: str | None) -> object:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _close_tag_in_value(turn: Turn) -> bool:
    """SGLang ends a call at the first `</tool_call>`, also inside a value. Then it drops or changes the call."""
    return any("</tool_call>" in json.dumps(arguments) for _, arguments in turn.calls)


def _null_as_text(turn: Turn) -> bool:
    """SGLang reads the text `null` as null, also if the schema says that the value is text."""
    return any("null" in arguments.values() for _, arguments in turn.calls)


def _word_as_python(turn: Turn) -> bool:
    """SGLang reads the texts `null` and `true` as `None` and `True`, also if the schema says that the value is text."""
    return any(word in arguments.values() for _, arguments in turn.calls for word in ("null", "true"))


def _null_of_gemma(turn: Turn) -> bool:
    """SGLang reads `null` as the text "null"."""
    return "null" in json.dumps([list(arguments.values()) for _, arguments in turn.calls])


def _text_as_json(turn: Turn) -> bool:
    """SGLang reads a text as JSON if it can, also if the schema says that the value is text."""
    return any(_json(value) != value for _, arguments in turn.calls for value in arguments.values() if _is_text(value))


def _is_text(value: JsonValue) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def _blanks_around_text(turn: Turn) -> bool:
    """SGLang removes blanks and line breaks around a text."""
    texts = [value for _, arguments in turn.calls for value in arguments.values() if _is_text(value)]
    return any(text != text.strip() for text in texts)


def _id_of_call(turn: Turn) -> bool:
    """SGLang reads `[CALL_ID]` and the id as part of the name."""
    return "[CALL_ID]" in turn.text


def _recipient_before_channel(turn: Turn) -> bool:
    """SGLang loses a call whose recipient stands before the channel, as the public template writes it."""
    return " to=functions." in turn.text.replace("commentary to=", "")


Rule = Callable[[Turn], bool]
DETECTORS: Mapping[str, tuple[str, Sequence[Rule]]] = {
    "deepseek_v3": ("deepseekv3", []),
    "deepseek_v3.1": ("deepseekv31", []),
    "deepseek_v3.2": ("deepseekv32", [_blanks_around_text]),
    "gemma4": ("gemma4", [_null_of_gemma]),
    "glm": ("glm45", [_close_tag_in_value, _word_as_python]),
    "gpt_oss": ("gpt-oss", [_recipient_before_channel]),
    "hermes": ("hermes", [_close_tag_in_value]),
    "kimi_k2": ("kimi_k2", []),
    "llama3_json": ("llama3", []),
    "mistral": ("mistral", [_id_of_call]),
    "muse_glimmer": ("muse", [_text_as_json]),
    "pythonic": ("lfm2", []),
    "qwen3_coder": ("qwen3_coder", [_close_tag_in_value, _null_as_text]),
}
"""Our format -> SGLang's detector, and the known differences. In each, ours reads the calls as they were written."""

AROUND = {"gpt-oss": "<|start|>assistant{}<|call|>", "muse": "<|start|>assistant{}<|eot|>"}
"""Text of the generation prompt and the end-of-turn token, for detectors that need them."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", DETECTORS)
def test_both_parsers_read_the_same_calls(name: str) -> None:
    require_sglang()
    detector, rules = DETECTORS[name]
    found = set()
    for turn in compared(FORMATS[name], detector):
        assert turn.ours == list(turn.calls), turn.text
        known = [rule for rule in rules if rule(turn)]
        assert known, (turn.text, turn.theirs)
        found.update(known[:1])
    assert found == set(rules)
