"""SGLang's function-call detectors as tool parsers: `sglang/qwen3_coder`, `sglang/deepseekv31`, `sglang/kimi_k2`, …

The detectors run in agentrl. The inference server never parses tool calls, so it returns the sampled tokens unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Protocol

from agentrl.chat.base import ParsedCall, ParsedTurn, ToolParser
from agentrl.chat.parsers.foreign import process
from agentrl.chat.parsers.json_text import BadJSONError, is_unicode, read_object, write_json
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.concurrency.child import EndedError
from agentrl.errors import ConfigError, Kind, UnknownNameError, install_command, suggestion
from agentrl.types.messages import ToolSchema

PREFIX = "sglang/"
MAX_HERE = 256
"""Maximum characters of a turn that is parsed in this process. Longer turns are parsed in a child process with a
timeout, because the time of some detectors is cubic in the length."""


@dataclass(frozen=True, slots=True)
class Detected:
    """Result of a detector: text, (name, arguments) of each call, and number of started calls; or its error."""

    text: str = ""
    calls: Sequence[tuple[str | None, str | None]] = ()
    num_begun: int = 0
    error: str | None = None


class _Item(Protocol):
    """SGLang's ToolCallItem."""

    name: str | None
    parameters: str


class _Found(Protocol):
    """SGLang's StreamingParseResult."""

    normal_text: str
    calls: Sequence[_Item]


class _Detector(Protocol):
    """SGLang's BaseFormatDetector; `tools` are `Tool` objects of SGLang's OpenAI protocol (see `read_tools`)."""

    bot_token: str

    def has_tool_call(self, text: str) -> bool: ...
    def detect_and_parse(self, text: str, tools: Sequence[object]) -> _Found: ...


def find_sglang_parser(name: str) -> Callable[[], ToolParser]:
    """Return SGLang's parser `name` (a value of its option `--tool-call-parser`).

    Raises:
        ConfigError: SGLang is not installed.
        UnknownNameError: SGLang has no such parser; the message suggests the nearest name.
    """
    known = detectors()
    if name not in known:
        valid = [PREFIX + each for each in known]
        raise UnknownNameError(f"unknown tool parser '{PREFIX}{name}': {suggestion(PREFIX + name, valid)}")
    return partial(SglangParser, name)


class SglangParser:
    """Tool parser that uses one of SGLang's detectors.

    - An unreadable call is returned with its `error`. SGLang would return it as text or drop it.
    - A call of an unknown tool is returned as a call; agentrl's `Toolbox` answers such a call with an error.
    - All text up to the first `</think>` is thoughts, and calls inside thoughts are ignored. The detector receives only
      the text after `</think>`, or no text if the turn was truncated inside its thoughts.

    Some formats write arguments without types (Qwen3-Coder, GLM, MiniMax). The types of these arguments come from the
    tools' schemas (see `for_tools`); without schemas, the arguments are text.
    """

    stop: tuple[str, ...] = ()
    off_loop = True
    """True: parsing may need seconds, so it must not run on the event loop."""

    def __init__(self, name: str, schemas: Sequence[ToolSchema] = ()) -> None:
        self._name = name
        self._tools, self._schemas = read_tools(schemas), schemas
        self._names = ", ".join(schema.name for schema in schemas)

    def for_tools(self, schemas: Sequence[ToolSchema]) -> SglangParser:
        """Return a parser for turns in which these tools are available."""
        return SglangParser(self._name, schemas)

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer_text = split_thinking(text)
        found = (
            detect(self._name, answer_text, self._tools)
            if len(answer_text) <= MAX_HERE
            else self._detect_elsewhere(answer_text)
        )
        if found is None:
            return ParsedTurn(answer_text.strip(), thinking=thinking)
        if found.error is not None:
            return ParsedTurn("", (self._unreadable(answer_text, found.error),), thinking)
        calls = [_call(*item) for item in found.calls]
        if found.num_begun > len(calls):
            what = f"{found.num_begun} calls begin, {len(calls)} can be read" if calls else "no call can be read in it"
            calls.append(self._unreadable(answer_text, what))
        return ParsedTurn(found.text.strip(), tuple(calls), thinking)

    def _detect_elsewhere(self, text: str) -> Detected | None:
        question = {"name": self._name, "text": text, "schemas": [schema.model_dump() for schema in self._schemas]}
        try:
            answer = process.ask("agentrl.chat.parsers.sglang_reader", question)
        except EndedError as error:
            return Detected(error=f"its reader {error}")
        if "mistake" in answer:
            return Detected(error=answer["mistake"])
        return Detected(**answer["result"]) if answer["result"] else None

    def _unreadable(self, text: str, why: str) -> ParsedCall:
        return ParsedCall("", text, f"The tool call cannot be read: {why}. The tools are: {self._names}.")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def detect(name: str, text: str, tools: Sequence[object]) -> Detected | None:
    """Run the detector `name` on a turn and return its result; return None if the turn has no call."""
    detector = detectors()[name]()  # a new detector for each turn, because some keep state
    try:
        if not detector.has_tool_call(text):
            return None
        found = detector.detect_and_parse(text, tools)
        calls = tuple((item.name, item.parameters) for item in found.calls)
        return Detected(found.normal_text, calls, _num_begun(detector, text))
    except Exception as error:  # any failure of a detector is caused by the model's text
        return Detected(error=_reason(error))


def _call(name: str | None, arguments: str | None) -> ParsedCall:
    name, arguments = name or "", arguments or "{}"
    if not name or not is_unicode(name):
        return ParsedCall("", arguments, "The tool call has no name, or one that is not text.")
    try:
        value = read_object(arguments)
        return ParsedCall(name, arguments if is_unicode(arguments) else write_json(value))
    except BadJSONError as error:
        return ParsedCall(name, arguments, f"The arguments of '{name}' cannot be read: {error}.")


def _num_begun(detector: _Detector, text: str) -> int:
    """Minimum number of calls that start in `text`: the number of start marks, at least one."""
    mark = detector.bot_token.strip()
    return max(1, text.count(mark) if mark else 1)


def read_tools(schemas: Sequence[ToolSchema]) -> list[object]:
    """Convert schemas to SGLang's classes."""
    from sglang.srt.entrypoints.openai.protocol import Tool

    return [Tool.model_validate(schema.for_template()) for schema in schemas]


@cache
def detectors() -> dict[str, Callable[[], _Detector]]:
    """SGLang's detector classes by name; raises `ConfigError` if SGLang is not installed."""
    if find_spec("sglang") is None:
        raise ConfigError.at(
            "rollout.multi_turn.format",
            Kind.NOT_FOUND,
            f"tool parsers {PREFIX}NAME need SGLang, which is not installed: {install_command('sglang')}",
        )
    from sglang.srt.environ import envs
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    envs.SGLANG_FORWARD_UNKNOWN_TOOLS.set(True)
    # detectors log the model's mistakes; these are reported in the call's `error` instead
    logging.getLogger("sglang.srt.function_call").setLevel(logging.CRITICAL)
    return dict(FunctionCallParser.ToolCallParserEnum)
