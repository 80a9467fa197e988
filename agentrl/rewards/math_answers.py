"""Whether two answers in LaTeX are the same mathematics: plain cases here, the others through math-verify."""

from __future__ import annotations

import logging
import re
from fractions import Fraction

from pydantic import JsonValue

from agentrl.answers import boxed
from agentrl.errors import RewardError

_MAX_CHARS = 1000
"""Longer answers are wrong: nobody's ground truth looks so, and to parse them takes for ever."""
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_DROPPED = re.compile(r"\\left|\\right|\\[!,;:]|\\ |\\%|%|\^\{?\\circ\}?|\\\$|\$|\\\(|\\\)|\\\[|\\\]")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FRACTION = re.compile(r"(-?)\\frac\{(-?\d+)\}\{(\d+)\}|(-?)\\frac(\d)(\d)|(-?)(-?\d+)/(\d+)")
_WORDS = re.compile(r"[^\W\d_]{3,}(?:[ -][^\W\d_]+)*")


def plainly_same(answer: str, truth: str) -> bool | None:
    """Whether they are the same, where text or numbers tell; None where it takes algebra.

    Words never go to the algebra: it would read them as products of letters, equal in any order.
    """
    left, right = _plain(answer), _plain(truth)
    if left.replace(" ", "") == right.replace(" ", ""):
        return bool(left)
    if not left or len(answer) > _MAX_CHARS:
        return False
    numbers = _number(left), _number(right)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if _WORDS.fullmatch(right) or _WORDS.fullmatch(left):
        return left.casefold() == right.casefold()
    return None


def same_by_algebra(answer: str, truth: str) -> float:
    """1 where math-verify finds them equal; for a main thread, as its timeouts, of 5 seconds a step, are signals."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it tells of its timeouts, and not of what
    kinds = (LatexExtractionConfig(), ExprExtractionConfig())
    gold, given = (parse(f"\\boxed{{{text}}}", kinds) for text in (_plain(truth), _plain(answer)))
    return float(bool(gold) and bool(given) and verify(gold, given))


def truths_of(ground_truth: JsonValue) -> list[str]:
    r"""The answers that count: itself, each of a list, what `\boxed{}` holds or what follows `####`.

    Raises:
        RewardError: there is none.
    """
    found = ground_truth if isinstance(ground_truth, list) else [ground_truth]
    texts = [str(each) for each in found if isinstance(each, (str, int, float))]
    held = [boxed(text) if boxed(text) is not None else text.rpartition("####")[2] for text in texts]
    if truths := [each.strip() for each in held if each and each.strip()]:
        return truths
    raise RewardError(f"the ground truth {ground_truth!r:.100} holds no answer")


def _plain(text: str) -> str:
    text = _WRAPPED.sub(r"\1", text.strip().rstrip(".")).replace("{,}", ",")
    text = _DROPPED.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = " ".join(text.split())
    return text.replace(",", "") if _THOUSANDS.fullmatch(text.replace(" ", "")) else text


def _number(text: str) -> Fraction | None:
    text = text.replace(" ", "")
    if found := _FRACTION.fullmatch(text):
        sign, over, under = (part for part in found.groups() if part is not None)
        return Fraction(int(over), int(under)) * (-1 if sign else 1) if int(under) else None
    try:
        return Fraction(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)", text) else None
    except ValueError:
        return None
