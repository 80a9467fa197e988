"""Contract of tool parsers: what every built-in parser must do, on text of its own format and on any text.

A new parser needs a module in `parser_formats/` with a constant `FORMAT`; `test_parser_contract.py` then tests it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

from hypothesis import strategies as st
from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn, ToolParser, parser_for
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.thinking import plain_turn
from agentrl.types.messages import FunctionSchema, ToolSchema

Call = tuple[str, dict[str, JsonValue]]
"""Name and arguments of a tool call."""

NAMES = ("f", "get_weather", "search-web", "maps.find")
CONTENTS = ("", "Let me look.", "Größe: 日本 🙂\nand {more}", 'He said "no" [1] <b>')
THOUGHTS = ("I need a tool.", "Shall I?\n\nYes: {this} [one] <there>.")

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=6,
)
identifiers = st.sampled_from(["q", "count", "the_text", "x1", "options"])


@dataclass(frozen=True)
class Format:
    """A built-in parser, and the text that its models write.

    Attributes:
        name: registered name of the parser.
        write: (content, calls) -> text of a turn without thoughts, as the models' chat template writes it.
        marks: the format's own markers, for fuzzing and for very long text.
        write_thoughts: text of thoughts; the content follows.
        fits: whether the format can express a call. Some formats cannot express a text that contains their markers.
        keys: strategy of argument names; identifiers in formats that allow no other.
        parallel: whether a turn may contain several calls.
        typed: whether the types of arguments come from the tools' schemas.
        make: makes the parser.
    """

    name: str
    write: Callable[[str, Sequence[Call]], str]
    marks: tuple[str, ...]
    write_thoughts: Callable[[str], str] = "<think>\n{}\n</think>\n\n".format
    fits: Callable[[Call], bool] = lambda call: True
    keys: st.SearchStrategy[str] = field(default_factory=lambda: st.text() | identifiers)
    parallel: bool = True
    typed: bool = False
    make: Callable[[], ToolParser] | None = None

    def parser(self, calls: Sequence[Call] = ()) -> ToolParser:
        """The parser, bound to schemas of these calls."""
        made = self.make() if self.make else tool_parsers.get(self.name)()
        return parser_for(made, schemas_of(calls))

    def calls(self, max_size: int = 3) -> st.SearchStrategy[list[Call]]:
        """Calls that the format can express. Each call has its own name, because a name has one schema."""
        arguments = st.dictionaries(self.keys, values, max_size=4)
        call = st.tuples(st.sampled_from(NAMES), arguments).filter(self.fits)
        most = max_size if self.parallel else 1
        return st.lists(call, min_size=1, max_size=most, unique_by=lambda call: call[0])

    @cached_property
    def examples(self) -> list[str]:
        """Valid turns, from which fuzzing makes broken ones."""
        awkward: Call = (
            "get_weather",
            {"q": 'say "hi" \\ {to} <them>\n', "options": {"deep": [True, None, -1.5e3]}, "count": 2},
        )
        chosen: list[list[Call]] = [[("f", {})], [("f", {"q": "x"})], [awkward], [("f", {"q": ""}), awkward]]
        return [
            thoughts + self.write(content, calls[: None if self.parallel else 1])
            for calls in chosen
            for content in CONTENTS
            for thoughts in ("", self.write_thoughts(THOUGHTS[0]))
        ]


def schemas_of(calls: Sequence[Call]) -> list[ToolSchema]:
    """Schemas of tools that accept these arguments."""
    return [
        ToolSchema(
            function=FunctionSchema(
                name=name,
                parameters={"type": "object", "properties": {key: _schema(value) for key, value in arguments.items()}},
            )
        )
        for name, arguments in calls
    ]


def _schema(value: JsonValue) -> dict[str, JsonValue]:
    types = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return {"type": types.get(type(value), "null")}


# ---- invariants of any text -----------------------------------------------------------------------------------------


def check_any_text(parser: ToolParser, text: str) -> ParsedTurn:
    """Parse any text: the parser does not raise, is deterministic, and reads only what is in the text."""
    turn = parser.parse(text)
    assert parser.parse(text) == turn
    for call in turn.calls:
        call.name.encode()  # valid Unicode, so it can be stored
        if call.error is None:
            assert call.name
            arguments = json.loads(call.arguments, parse_constant=_refuse)
            assert isinstance(arguments, dict)
            call.arguments.encode()
            for piece in (call.name, *_strings(arguments)):
                assert occurs(piece, text), (piece, text)
        else:
            assert call.error.strip()
    return turn


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for child in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from _strings(child)
    if isinstance(value, dict):
        yield from value


def occurs(piece: str, text: str, depth: int = 3) -> bool:
    """Whether `piece` is in the text, as it is or with the escapes of JSON or Python."""
    if piece in text:
        return True
    if not depth or "\\" not in text:
        return False
    return any(occurs(piece, unescaped(text, keep=keep), depth - 1) for keep in (False, True))


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}


def unescaped(text: str, *, keep: bool) -> str:
    """The text with every escape of JSON or Python replaced by its character; `keep` keeps unknown escapes."""
    text = _ESCAPE.sub(lambda match: _character(match[1], match[0] if keep else match[1]), text)
    return re.sub("[\ud800-\udbff][\udc00-\udfff]", lambda pair: _joined(pair[0]), text)


def _character(code: str, unknown: str) -> str:
    if code[0] in "uUx" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else unknown
    if code[0] in "01234567":
        return chr(int(code, 8))
    return code if code in "\\\"'/" else _LETTERS.get(code, unknown)


def _joined(pair: str) -> str:
    return pair.encode("utf-16", "surrogatepass").decode("utf-16")


# ---- invariants of turns in the parser's format ---------------------------------------------------------------------


def check_round_trip(form: Format, content: str, thoughts: str, calls: Sequence[Call]) -> None:
    """Thoughts, content and calls of a turn are parsed as they were written."""
    written = form.write(content, calls)
    turn = check_any_text(form.parser(calls), (form.write_thoughts(thoughts) if thoughts else "") + written)
    assert [(call.name, meant(call), call.error) for call in turn.calls] == [(*call, None) for call in calls]
    assert (turn.content, turn.thinking.strip()) == (content.strip(), thoughts)


def check_cut(form: Format, whole: str, calls: Sequence[Call]) -> None:
    """No prefix of a turn has a complete call that the whole turn does not have at this place."""
    parser = form.parser(calls)
    expected = complete(parser.parse(whole))
    for length in range(len(whole)):
        found = complete(parser.parse(whole[:length]))
        assert found == expected[: len(found)], whole[:length]


def check_cut_thoughts(form: Format, thoughts: str, calls: Sequence[Call]) -> None:
    """Calls inside thoughts are not made, neither before nor after the thoughts end."""
    parser, inside = form.parser(calls), form.write(thoughts, calls)
    whole = form.write_thoughts(inside)
    for length in range(len(whole) + 1):
        turn = parser.parse(whole[:length])
        assert turn.calls == (), whole[:length]
        check_not_parsed(parser, whole[:length], turn)
    turn = parser.parse(whole + form.write("", calls))
    assert [(call.name, meant(call)) for call in turn.calls] == list(calls)
    assert turn.thinking.strip() == inside.strip()


def check_not_parsed(parser: ToolParser, text: str, turn: ParsedTurn) -> None:
    """A turn that a limit cut is not parsed: it has no calls, and the same thoughts as if it were."""
    plain = plain_turn(parser, text)
    assert plain.calls == ()
    assert (plain.thinking.strip(), plain.content.strip()) == (turn.thinking.strip(), turn.content.strip()), text


def complete(turn: ParsedTurn) -> list[tuple[str, object]]:
    """The calls that can be run."""
    return [(call.name, meant(call)) for call in turn.calls if call.error is None]


def meant(call: ParsedCall) -> object:
    """The arguments as an object."""
    return json.loads(call.arguments) if call.error is None else call.arguments


# ---- fuzzing and long text ------------------------------------------------------------------------------------------

PIECES = (
    *("{", "}", "[", "]", "(", ")", "<", ">", '"', "'", "\\", ",", ":", ";", "=", "\n", " ", "\\u0041", "\\ud800"),
    *("<think>", "</think>", "</think>\n\n", '{"name": "f", "arguments": {', '{"name": "f", "parameters": {"a": 1}}'),
    *('"name": "f"', '"arguments": {}', '{"a": 1}', "null", "true", "None", "NaN", "1e999", "-", "0x1", "9" * 30),
    *("f", "f(a=1)", "a", "é", "日本", "\ud800", "\x00", "[" * 50, '{"a":' * 50, "```json"),
)


def fuzzed(form: Format, count: int, seed: int) -> Iterator[str]:
    """Texts that are nearly in the format: pieces in any order, and valid turns with a few edits."""
    random = Random(f"{form.name} {seed}")
    pieces = [*PIECES, *form.marks * 4]
    for number in range(count):
        if number % 2:
            yield "".join(random.choices(pieces, k=random.randrange(1, 12)))
            continue
        text = random.choice(form.examples)
        for _ in range(random.randrange(1, 4)):
            text = _edited(text, random, pieces)
        yield text


def _edited(text: str, random: Random, pieces: Sequence[str]) -> str:
    start, end = sorted((random.randrange(len(text) + 1), random.randrange(len(text) + 1)))
    kind = random.randrange(4)
    if kind == 0:  # insert
        return text[:start] + random.choice(pieces) + text[start:]
    if kind == 1:  # delete a few characters
        return text[:start] + text[min(end, start + 3) :]
    if kind == 2:  # repeat
        return text[:end] + text[start:]
    return text[:start]  # cut


def long_texts(form: Format, size: int) -> Iterator[str]:
    """Texts of `size` characters for which a careless parser needs quadratic time."""
    marks = [mark for mark in form.marks if mark.strip()]
    repeated = ["{", "<", "[", '"', "\\", "(", "=", "\n", '{"a":', "<think>", "</think>", *marks]
    repeated += [mark + "{" for mark in marks] + [form.write("", [("f", {"q": "x"})])]
    for piece in repeated:
        text = piece * (size // len(piece))
        for opening in ("", *marks[:3]):
            yield opening + text


def by_name(formats: Sequence[Format]) -> Mapping[str, Format]:
    """The formats by the name of their parser."""
    return {form.name: form for form in formats}
