"""A calculator that evaluates arithmetic and nothing else, with limits on time and memory."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable

from pydantic import JsonValue

from agentrl.tools.base import BaseTool, ToolError, ToolResponse
from agentrl.tools.function import as_tool, tool

Number = int | float

_MAX_CHARS = 500
_MAX_DEPTH = 50
"""Maximum nesting of parentheses, signs and powers; each level needs a few frames of the interpreter's stack."""
_MAX_BITS = 1024
"""Maximum bits of an integer, including intermediate results. 2 ** 1024 is about the largest float."""
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(\*\*|//|[-+*/%()]))")
_LEVELS: tuple[dict[str, Callable[[Number, Number], Number]], ...] = (
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod},
)


def evaluate(expression: str) -> Number:
    """Return the value of an expression of numbers, `+ - * / // % **` and parentheses, with Python's precedence.

    Raises:
        ToolError: the expression is not supported, too long or nested too deeply; or it divides by zero; or one of its
            numbers or results is too large (see `_MAX_BITS`).
    """
    if len(expression) > _MAX_CHARS:
        raise ToolError(f"the expression has {len(expression)} characters, at most {_MAX_CHARS} are allowed")
    try:
        return _Reader(expression).whole()
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("the number is too large") from None


class _Reader:
    """Recursive-descent parser that evaluates while it parses."""

    def __init__(self, expression: str) -> None:
        self._tokens = [*_tokens(expression), ""]
        self._next = 0
        self._depth = 0

    def whole(self) -> Number:
        value = self._level(0)
        self._expect("")
        return value

    def _level(self, level: int) -> Number:
        if level == len(_LEVELS):
            return self._signed()
        value = self._level(level + 1)
        while apply := _LEVELS[level].get(self._tokens[self._next]):
            self._next += 1
            value = _checked(apply(value, self._level(level + 1)))
        return value

    def _signed(self) -> Number:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ToolError(f"the expression is nested more than {_MAX_DEPTH} deep")
        value = self._power() if (sign := self._take("+", "-")) is None else self._signed()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Number:
        base = self._operand()
        # evaluated right to left; the exponent may have a sign: 2 ** -3 ** 2 is 2 ** (-(3 ** 2))
        return base if self._take("**") is None else _checked(_power(base, self._signed()))

    def _operand(self) -> Number:
        if self._take("(") is not None:
            value = self._level(0)
            self._expect(")")
            return value
        token = self._tokens[self._next]
        if not token or token[0] not in ".0123456789":
            raise ToolError(f"expected a number, found {repr(token) if token else 'the end'}")
        self._next += 1
        return _checked(int(token) if token.isdigit() else float(token))

    def _take(self, *wanted: str) -> str | None:
        token = self._tokens[self._next]
        if token not in wanted:
            return None
        self._next += 1
        return token

    def _expect(self, wanted: str) -> None:
        if (token := self._tokens[self._next]) != wanted:
            expected = repr(wanted) if wanted else "the end or an operator"
            raise ToolError(f"expected {expected}, found {repr(token) if token else 'the end'}")
        self._next += 1


def _tokens(expression: str) -> list[str]:
    tokens, position = [], 0
    expression = expression.rstrip()
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ToolError(
                f"cannot read '{expression[position:][:20]}': only numbers, + - * / // % ** and parentheses are allowed"
            )
        tokens.append(match[1] or match[2])
        position = match.end()
    return tokens


def _power(base: Number, exponent: Number) -> Number:
    # checked before computing: 9 ** 9 ** 9 would need gigabytes
    if isinstance(base, int) and abs(base) > 1 and exponent * (abs(base).bit_length() - 1) > _MAX_BITS:
        raise OverflowError
    value: Number | complex = base**exponent
    if isinstance(value, complex):
        raise ToolError("the result is not a real number")
    return value


def _checked(value: Number) -> Number:
    if not math.isfinite(value) or (isinstance(value, int) and value.bit_length() > _MAX_BITS):
        raise OverflowError
    return value


def show(value: Number) -> str:
    """Format a number. Integers keep all digits; a float that is whole and below 1e15 in size becomes an integer.

    Other floats get at most 12 significant digits.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value) if isinstance(value, int) else f"{value:.12g}"


@tool(deterministic=True)
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, + - * / // % ** and parentheses, such as (37*41)+19.
    """
    return show(evaluate(expression))


class CalculatorTool(BaseTool):
    """The calculator as a class, for `class_name: agentrl.tools.calculator.CalculatorTool`."""

    deterministic = True
    tool_schema = as_tool(calculator).schema

    async def execute(
        self, instance_id: str, parameters: dict[str, JsonValue], **kwargs: object
    ) -> tuple[ToolResponse, float, dict[str, JsonValue]]:
        """Evaluate `parameters["expression"]`."""
        return ToolResponse(calculator(str(parameters["expression"]))), 0.0, {}
