"""Arithmetic problems of two operations, and demonstrations by a teacher that makes mistakes."""

from __future__ import annotations

import operator
import random
from dataclasses import dataclass

Message = dict[str, object]


@dataclass(frozen=True)
class Calls:
    """Format of tool calls: name of the tool, its only argument, and whether one call can compute two operations."""

    tool: str = "calculator"
    argument: str = "expression"
    computes_all: bool = False

    def turns(self, expression: str, result: object) -> list[Message]:
        """Return a tool call and the tool's answer."""
        function = {"name": self.tool, "arguments": {self.argument: expression}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "name": self.tool, "content": str(result)},
        ]


APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul}
SMALLEST, LARGEST = 10, 99


@dataclass(frozen=True)
class Problem:
    """An expression such as (37*41)+19, and the two operations that solve it: ("37*41", 1517), ("1517+19", 1536)."""

    text: str
    first: tuple[str, int]
    second: tuple[str, int]

    @property
    def answer(self) -> str:
        return str(self.second[1])

    @property
    def prompt(self) -> list[Message]:
        return [
            {"role": "system", "content": "You are a calculator agent."},
            {"role": "user", "content": f"What is {self.text}?"},
        ]


def draw_problem(rng: random.Random) -> Problem:
    """Draw three numbers, two operators, and brackets around the left or the right pair."""
    a, b, c = (rng.randint(SMALLEST, LARGEST) for _ in range(3))
    inner, outer = rng.choice("+-*"), rng.choice("+-")
    if rng.random() < 0.5:
        middle = APPLY[inner](a, b)
        second = (f"{middle}{outer}{c}", APPLY[outer](middle, c))
        return Problem(f"({a}{inner}{b}){outer}{c}", (f"{a}{inner}{b}", middle), second)
    middle = APPLY[inner](b, c)
    second = (f"{a}{outer}{middle}", APPLY[outer](a, middle))
    return Problem(f"{a}{outer}({b}{inner}{c})", (f"{b}{inner}{c}", middle), second)


def right_trace(problem: Problem, calls: Calls) -> list[Message]:
    """A correct demonstration: two calls and the answer."""
    answer = problem.second[1]
    return [
        *problem.prompt,
        *calls.turns(*problem.first),
        *calls.turns(*problem.second),
        _say(f"The answer is {answer}"),
    ]


def wrong_trace(problem: Problem, calls: Calls, rng: random.Random) -> list[Message]:
    """A demonstration with one of the teacher's mistakes; the most common one is to answer after the first call."""
    first = calls.turns(*problem.first)
    everything = calls.turns(problem.text, problem.answer if calls.computes_all else "error")
    give_up = _say("I do not know")
    habits = {
        "gives up at once": (3, [give_up]),
        "stops early": (6, [*first, _say(f"The answer is {problem.first[1]}")]),
        "passes everything at once": (2, [*everything, give_up]),
        "gives up after one call": (4, [*first, give_up]),
    }
    weights = [weight for weight, _ in habits.values()]
    _, turns = rng.choices(list(habits.values()), weights)[0]
    return [*problem.prompt, *turns]


def _say(text: str) -> Message:
    return {"role": "assistant", "content": text}
