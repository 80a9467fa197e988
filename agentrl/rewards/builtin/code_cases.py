"""Read the tests of a coding task from the ground truth, turn them into programs, and check the output."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from agentrl.errors import RewardError
from agentrl.rewards.builtin import code_peers

Kind = Literal["stdin", "call", "assert"]
_FENCE = re.compile(r"```[ \t]*([\w+#-]*)[^\n]{0,80}\n(.*?)(?:```|\Z)", re.DOTALL)
_PRELUDE = (
    "import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string,"
    " sys\nfrom typing import *\nfrom collections import *\nfrom heapq import *\nfrom bisect import *\n"
    "from itertools import *\nfrom functools import *\nfrom math import *"
)
_CALL = """\
import json, sys
names = {{"__name__": "solution"}}
exec({prelude!r}, names)
exec(compile({code!r}, "solution.py", "exec"), names)
function = names.get({name!r}) or getattr(names["Solution"](), {name!r})
result = function(*json.loads(sys.stdin.read()))
print("\\n{mark}" + json.dumps(result, default=list))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    - stdin: the program reads `given` and must print `expected`.
    - call: the function `name` is called with the arguments in the JSON list `given` and must return `expected`.
    - assert: `given` is Python code that must end without error. This code runs in a separate process and calls the
      program's functions from there (`code_peers`), so the program cannot fake the result.
    """

    kind: Kind
    given: str
    expected: JsonValue = None
    name: str = ""

    def program(self, code: str, mark: str) -> tuple[str, str]:
        """Return (program, standard input) that test `code`.

        The process that runs `code` never decides the result. Printed text and return values are compared outside the
        sandbox. Assertions run in a separate process, which prints `mark` if no assertion fails. For such tests, the
        process that runs `code` does not know `mark`.
        """
        if self.kind == "stdin":
            return code, self.given
        if self.kind == "call":
            return _CALL.format(prelude=_PRELUDE, code=code, name=self.name, mark=mark), self.given
        job = {"code": code, "tests": self.given, "mark": mark, "prelude": _PRELUDE, "source": _peers()}
        return f"{_peers()}\nmain()\n", json.dumps(job)

    def passed(self, printed: str, mark: str) -> bool:
        """Whether a program that ended without error printed the expected output."""
        if self.kind == "stdin":
            return _same_text(printed, str(self.expected))
        _, found, result = printed.rpartition(f"\n{mark}")
        if self.kind == "assert" or not found:
            return bool(found)
        return _same_result(_json(result.partition("\n")[0]), self.expected)


@cache
def _peers() -> str:
    return Path(code_peers.__file__).read_text(encoding="utf-8")


def code_of(text: str) -> str | None:
    """Return the last Python block fenced with ```, or else the last block of any language; None without a block."""
    blocks: list[tuple[str, str]] = _FENCE.findall(text)
    python = [code for language, code in blocks if language.lower() in ("python", "python3", "py")]
    codes = python or [code for _, code in blocks]
    return codes[-1] if codes else None


def read_cases(ground_truth: JsonValue) -> Sequence[Case]:
    """Read the tests of a row. Supported forms (each may also be a JSON string):

    - `{"inputs": [...], "outputs": [...]}`: standard input and output of each test (APPS, CodeContests, TACO,
      Codeforces). With a further key `fn_name`, the name of a function, the entries are the arguments and the result of
      each call of this function
    - `{"assert_case": [...]}`, or a list of strings: assertions
    - a list of `{"input": ..., "output": ...}`
    - a string that is not JSON: a test program

    Raises:
        RewardError: an unknown form, no test, or lists of different lengths.
    """
    return _read_text(ground_truth) if isinstance(ground_truth, str) else _read(ground_truth)


@lru_cache(64)  # rollouts of a task are scored at about the same time, and tests may be megabytes
def _read_text(text: str) -> Sequence[Case]:
    return _read(_json(text))


def _read(tests: JsonValue) -> Sequence[Case]:
    if isinstance(tests, str):
        return [Case("assert", _program(tests))] if tests.strip() else _refused("there is no test")
    if isinstance(tests, Mapping):
        cases = _cases_of_mapping(tests)
    elif isinstance(tests, list):
        cases = [_case_of_item(item) for item in tests]
    else:
        return _refused(f"{tests!r:.100} has an unknown form (docs/rewards.md)")
    return cases or _refused("there is no test")


def _program(text: str) -> str:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # else every answer would fail this test
        _refused(f"the text is neither JSON nor Python ({error})")
    return text


def _cases_of_mapping(tests: Mapping[str, JsonValue]) -> list[Case]:
    if isinstance(asserts := tests.get("assert_case"), list):
        return [Case("assert", str(each)) for each in asserts]
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        return _refused(f"expected lists 'inputs' and 'outputs', or 'assert_case', got {', '.join(tests) or 'nothing'}")
    if len(inputs) != len(outputs):
        return _refused(f"there are {len(inputs)} inputs and {len(outputs)} outputs")
    make = _call_case(str(tests["fn_name"])) if tests.get("fn_name") else _stdin_case
    return [make(given, expected) for given, expected in zip(inputs, outputs, strict=True)]


def _case_of_item(item: JsonValue) -> Case:
    if isinstance(item, str):
        return Case("assert", item)
    if isinstance(item, dict) and "input" in item and "output" in item:
        return _stdin_case(item["input"], item["output"])
    _refused(f"a test must be a text or have 'input' and 'output', got {item!r:.100}")
    raise AssertionError  # `_refused` raises


def _stdin_case(given: JsonValue, expected: JsonValue) -> Case:
    return Case("stdin", _lines(given), _lines(expected))


def _call_case(name: str) -> Callable[[JsonValue, JsonValue], Case]:
    return partial(_call_case_of, name)


def _call_case_of(name: str, given: JsonValue, expected: JsonValue) -> Case:
    """Return a test that calls `name`. `given` is a list of arguments, or a string with one JSON argument per line."""
    arguments = given if isinstance(given, list) else [_json(line) for line in str(given).split("\n") if line.strip()]
    return Case("call", json.dumps(arguments), expected, name)


def _lines(value: JsonValue) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _json(value: JsonValue) -> JsonValue:
    """Parse a JSON string; return the string itself if it is not JSON."""
    if not isinstance(value, str):
        return value
    try:
        read: JsonValue = json.loads(value)
    except (ValueError, RecursionError):  # a model's program may print deeply nested brackets
        return value
    return read


def _refused(why: str) -> list[Case]:
    raise RewardError(f"the tests in the ground truth cannot be used: {why}")


def _same_text(printed: str, expected: str) -> bool:
    """Compare line by line, ignoring trailing blanks of each line and of the text."""
    left, right = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (printed, expected))
    return all(one == other for one, other in zip_longest(left, right))


def _same_result(result: JsonValue, expected: JsonValue) -> bool:
    """Whether `result` equals `expected`. `expected` may also be JSON text, or a list with one value (as in APPS)."""
    wanted = [expected, _json(expected)]
    wanted += [each[0] for each in wanted if isinstance(each, list) and len(each) == 1]
    try:
        return any(_equal(result, each) for each in wanted)
    except (RecursionError, OverflowError):  # an integer too large for a float
        return False


def _equal(one: JsonValue, other: JsonValue) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return (
            math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) if float in map(type, (one, other)) else one == other
        )
    return one == other
