"""SGLang's function-call detectors as tool parsers: `sglang/qwen3_coder`, `sglang/deepseekv31`, `sglang/kimi_k2`, …

They run in this process, so that tokens stay ours: the server is never asked to parse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Protocol

from agentrl.chat.base import ParsedCall, ParsedTurn, ToolParser
from agentrl.chat.parsers.json_text import BadJSONError, is_unicode, read_object, write_json
from agentrl.errors import ConfigError, UnknownNameError, suggestion
from agentrl.messages import ToolSchema

PREFIX = "sglang/"
_THINK_END = "</think>"


class _Item(Protocol):
    """SGLang's ToolCallItem."""

    name: str | None
    parameters: str


class _Found(Protocol):
    """SGLang's StreamingParseResult."""

    normal_text: str
    calls: Sequence[_Item]


class _Detector(Protocol):
    """SGLang's BaseFormatDetector; `tools` are models of its OpenAI protocol."""

    bot_token: str

    def has_tool_call(self, text: str) -> bool: ...
    def detect_and_parse(self, text: str, tools: Sequence[object]) -> _Found: ...


def find_sglang_parser(name: str) -> Callable[[], ToolParser]:
    """The parser that SGLang calls `name` (its `--tool-call-parser`).

    Raises:
        ConfigError: SGLang is not installed.
        UnknownNameError: it has no such parser; the text names the nearest.
    """
    detectors = _detectors()
    if name not in detectors:
        valid = [PREFIX + each for each in detectors]
        raise UnknownNameError(f"unknown tool parser '{PREFIX}{name}': {suggestion(PREFIX + name, valid)}")
    return partial(SglangParser, name)


class SglangParser:
    """One of SGLang's detectors, held to what a training run needs of a parser.

    - A call that cannot be read comes back with its `error`, where SGLang takes it for text or leaves it out.
    - A call of a tool that is not there is a call: the toolbox answers it.
    - Everything up to the first `</think>` is thought: calls in it are not made. A detector that reads its own
      thinking marks finds them behind it as before.

    Formats that write arguments without types (Qwen3-Coder, GLM, MiniMax) are read by the tools' schemas, which
    `for_tools` gives; without them such arguments are text.
    """

    stop: tuple[str, ...] = ()

    def __init__(self, name: str, schemas: Sequence[ToolSchema] = ()) -> None:
        self._name = name
        self._detector = _detectors()[name]
        self._tools = _tools(schemas)
        self._names = ", ".join(schema.name for schema in schemas)

    def for_tools(self, schemas: Sequence[ToolSchema]) -> SglangParser:
        """The parser for turns that are offered these tools."""
        return SglangParser(self._name, schemas)

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn."""
        before, mark, rest = text.partition(_THINK_END)
        thoughts, said = (before + mark, rest) if mark else ("", text)
        detector = self._detector()  # a new one: some keep what they read
        try:
            if not detector.has_tool_call(said):
                return ParsedTurn(text.strip())
            found = detector.detect_and_parse(said, self._tools)
        except Exception as error:  # whatever a detector stumbles over was written by the model
            return ParsedTurn(thoughts.strip(), (self._unread(said, _told(error)),))
        calls = [_call(item) for item in found.calls]
        if (num_begun := _num_begun(detector, said)) > len(calls):
            what = f"{num_begun} calls begin, {len(calls)} can be read" if calls else "no call can be read in it"
            return ParsedTurn((thoughts + found.normal_text).strip(), (*calls, self._unread(said, what)))
        return ParsedTurn((thoughts + found.normal_text).strip(), tuple(calls))

    def _unread(self, text: str, why: str) -> ParsedCall:
        return ParsedCall("", text, f"The tool call cannot be read: {why}. The tools are: {self._names}.")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _call(item: _Item) -> ParsedCall:
    name, arguments = item.name or "", item.parameters or "{}"
    if not name or not is_unicode(name):
        return ParsedCall("", arguments, "The tool call has no name, or one that is not text.")
    try:
        value = read_object(arguments)
        return ParsedCall(name, arguments if is_unicode(arguments) else write_json(value))
    except BadJSONError as error:
        return ParsedCall(name, arguments, f"The arguments of '{name}' cannot be read: {error}.")


def _num_begun(detector: _Detector, text: str) -> int:
    """Calls that begin in `text`, at least: one, or as many as the mark that begins each or several of them."""
    mark = detector.bot_token.strip()
    return max(1, text.count(mark) if mark else 1)


def _tools(schemas: Sequence[ToolSchema]) -> list[object]:
    from sglang.srt.entrypoints.openai.protocol import Tool

    return [Tool.model_validate(schema.for_template()) for schema in schemas]


@cache
def _detectors() -> dict[str, Callable[[], _Detector]]:
    if find_spec("sglang") is None:
        raise ConfigError(
            f"tool parsers {PREFIX}NAME are SGLang's, which is not installed: pip install 'agentrl[sglang]'"
        )
    from sglang.srt.environ import envs
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    envs.SGLANG_FORWARD_UNKNOWN_TOOLS.set(True)
    # what they log of a model's mistakes is said to the model, in the call's `error`
    logging.getLogger("sglang.srt.function_call").setLevel(logging.CRITICAL)
    return dict(FunctionCallParser.ToolCallParserEnum)
