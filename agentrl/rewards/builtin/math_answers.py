"""Decides whether two LaTeX answers are mathematically equal: simple cases directly, all others with math-verify."""

from __future__ import annotations

import logging
import re
from fractions import Fraction

from pydantic import JsonValue

from agentrl.errors import RewardError
from agentrl.utils.answers import boxed

_MAX_CHARS = 1000
"""Longer answers count as wrong. Parsing them is too slow, and no ground truth is that long."""
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_DROPPED = re.compile(r"\\left|\\right|\\[!,;:]|\\ |\\%|%|\^\{?\\circ\}?|\\\$|\$|\\\(|\\\)|\\\[|\\\]")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FRACTION = re.compile(r"(-?)\\frac\{(-?\d+)\}\{(\d+)\}|(-?)\\frac(\d)(\d)|(-?)(-?\d+)/(\d+)")
_WORDS = re.compile(r"[^\W\d_]{3,}(?:[ -][^\W\d_]+)*")


def plainly_same(answer: str, truth: str) -> bool | None:
    """Whether the answers are equal as text or numbers; None if the comparison needs algebra.

    Words are never compared by algebra, which reads a word as a product of letters: `no` would equal `on`.
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
    """1 if math-verify finds the answers equal, else 0.

    Call this function only in a main thread, because math-verify's timeouts (5 s) use signals.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # hide timeout messages, which do not name the answer
    kinds = (LatexExtractionConfig(), ExprExtractionConfig())
    gold, given = (parse(f"\\boxed{{{text}}}", kinds) for text in (_plain(truth), _plain(answer)))
    return float(bool(gold) and bool(given) and verify(gold, given))


def truths_of(ground_truth: JsonValue) -> list[str]:
    r"""Return the accepted answers: one for the ground truth, or one for each entry if the ground truth is a list.

    An answer is the content of `\boxed{}`, else the text after `####`, else the entire text.

    Raises:
        RewardError: there is no answer.
    """
    found = ground_truth if isinstance(ground_truth, list) else [ground_truth]
    texts = [str(each) for each in found if isinstance(each, (str, int, float))]
    held = [boxed(text) if boxed(text) is not None else text.rpartition("####")[2] for text in texts]
    if truths := [each.strip() for each in held if each and each.strip()]:
        return truths
    raise RewardError(f"the ground truth {ground_truth!r:.100} contains no answer")


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
