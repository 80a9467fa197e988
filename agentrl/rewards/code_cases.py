"""The tests of a coding task: read from a row's ground truth, made into programs, held against what these print."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Literal

from pydantic import JsonValue

from agentrl.errors import RewardError

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
    - call: the function `name` is called with the JSON list `given` and must return `expected`.
    - assert: `given` is Python that must run to its end behind the program.
    """

    kind: Kind
    given: str
    expected: JsonValue = None
    name: str = ""

    def program(self, code: str, mark: str) -> tuple[str, str]:
        """(program, standard input) that test `code`; `mark` is printed where the model's code cannot have known it."""
        if self.kind == "stdin":
            return code, self.given
        if self.kind == "call":
            return _CALL.format(prelude=_PRELUDE, code=code, name=self.name, mark=mark), self.given
        return f"{code}\n\n{self.given}\nprint('\\n{mark}')\n", ""

    def passed(self, printed: str, mark: str) -> bool:
        """Whether a program that ended well printed what it should."""
        if self.kind == "stdin":
            return _same_text(printed, str(self.expected))
        _, found, result = printed.rpartition(f"\n{mark}")
        if self.kind == "assert" or not found:
            return bool(found)
        return _same_result(_json(result.partition("\n")[0]), self.expected)


def code_of(text: str) -> str | None:
    """What the last block fenced with ``` holds, of Python where there is one; None without a block."""
    blocks: list[tuple[str, str]] = _FENCE.findall(text)
    python = [code for language, code in blocks if language.lower() in ("python", "python3", "py")]
    codes = python or [code for _, code in blocks]
    return codes[-1] if codes else None


def read_cases(ground_truth: JsonValue) -> Sequence[Case]:
    """The tests of a row. Known forms, each also as a text of JSON:

    - `{"inputs": [...], "outputs": [...]}`: standard input and output (APPS, CodeContests, TACO, Codeforces), with
      `fn_name` the arguments and the result of that function
    - `{"assert_case": [...]}`, or a list of texts: assertions
    - a list of `{"input": ..., "output": ...}`
    - a text that is no JSON: a test program

    Raises:
        RewardError: another form, no test, or lists of different lengths.
    """
    return _read_text(ground_truth) if isinstance(ground_truth, str) else _read(ground_truth)


@lru_cache(64)  # the siblings of a task come one after another, and tests may be megabytes
def _read_text(text: str) -> Sequence[Case]:
    return _read(_json(text))


def _read(tests: JsonValue) -> Sequence[Case]:
    if isinstance(tests, str):
        return [Case("assert", _program(tests))] if tests.strip() else _refused("it holds no test")
    if isinstance(tests, Mapping):
        cases = _cases_of_mapping(tests)
    elif isinstance(tests, list):
        cases = [_case_of_item(item) for item in tests]
    else:
        return _refused(f"{tests!r:.100} is none of the known forms (docs/rewards.md)")
    return cases or _refused("it holds no test")


def _program(text: str) -> str:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # every answer would fail it
        _refused(f"a text that is neither JSON nor Python ({error})")
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
    """Arguments are a list, or a text with the JSON of one argument a line."""
    arguments = given if isinstance(given, list) else [_json(line) for line in str(given).split("\n") if line.strip()]
    return Case("call", json.dumps(arguments), expected, name)


def _lines(value: JsonValue) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _json(value: JsonValue) -> JsonValue:
    """What a text of JSON says; the text itself where it is none."""
    if not isinstance(value, str):
        return value
    try:
        read: JsonValue = json.loads(value)
    except (ValueError, RecursionError):  # a model's program may print a million brackets
        return value
    return read


def _refused(why: str) -> list[Case]:
    raise RewardError(f"the tests in the ground truth cannot be used: {why}")


def _same_text(printed: str, expected: str) -> bool:
    """Line by line, blanks at the ends of lines and of the text aside."""
    left, right = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (printed, expected))
    return all(one == other for one, other in zip_longest(left, right))


def _same_result(result: JsonValue, expected: JsonValue) -> bool:
    """Equal, as JSON where what is expected is a text of it; APPS wraps some results in a list of one."""
    wanted = [expected, _json(expected)]
    wanted += [each[0] for each in wanted if isinstance(each, list) and len(each) == 1]
    try:
        return any(_equal(result, each) for each in wanted)
    except (RecursionError, OverflowError):  # a whole number that no float can hold
        return False


def _equal(one: JsonValue, other: JsonValue) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return (
            math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) if float in map(type, (one, other)) else one == other
        )
    return one == other
