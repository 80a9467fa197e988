"""Reads final answers out of text and compares them; shared by rewards, tools and interactions."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import Literal

NumberMethod = Literal["strict", "flexible"]

_NUMBER = r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*(?P<brace>\{)|\s+)")
_ANSWER_LINE = re.compile(r"\banswer[*\s]*:[*\s]*([^\n]+)", re.IGNORECASE)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # what a backslash precedes, such as \{, neither opens nor closes


def final_number(text: str, method: NumberMethod = "strict") -> Decimal | None:
    """The number a solution ends with, None where there is none; thousands separators and `$` do not count.

    `strict` reads the last `#### 1,234`, the form of GSM8K's own solutions (Cobbe et al. 2021, arXiv:2110.14168);
    `flexible` reads the last number of any kind.
    """
    found = (_MARKED if method == "strict" else _ANY).findall(text)
    return as_number(found[-1]) if found else None


def as_number(value: object) -> Decimal | None:
    """The number that a ground truth is: itself, its text, or what follows `####` in a worked solution."""
    text = str(value).rpartition("####")[2].strip().replace(",", "").replace("$", "")
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def normalised(text: object) -> str:
    """Text without thoughts, case, runs of blanks and a closing full stop."""
    answer = unicodedata.normalize("NFKC", str(text)).rpartition("</think>")[2]
    return " ".join(answer.casefold().split()).removesuffix(".").rstrip()


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` of a solution holds, None where there is none or it never closes.

    The form of MATH's own solutions (Hendrycks et al. 2021, arXiv:2103.03874), with `\fbox{...}` and `\boxed 5`.
    """
    found = list(_BOX.finditer(text))
    if not found:
        return None
    start = found[-1].end()
    if not found[-1]["brace"]:
        return re.split(r"[$\s]", text[start:], maxsplit=1)[0] or None
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()].strip()
    return None


def tagged(text: str, tag: str = "answer") -> str | None:
    """What the last `<answer>...</answer>` of a solution holds, None where there is none."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    begin = text.rfind(
        opening, 0, max(text.rfind(closing), 0)
    )  # no regular expression: a spam of tags would hold it up
    if begin < 0:
        return None
    begin += len(opening)
    return text[begin : text.index(closing, begin)].strip()


def answer_line(text: str) -> str | None:
    """What follows the last `Answer:` on its line, emphasis aside, None where there is none.

    The form that DAPO's prompts ask for (Yu et al. 2025, arXiv:2503.14476).
    """
    found = _ANSWER_LINE.findall(text)
    return found[-1].strip().strip("*").strip() if found else None


def final_answer(text: str) -> str:
    """What a text answers with: in `<answer>` tags, else boxed, else after `Answer:`, else all but its thoughts."""
    said = text.rpartition("</think>")[2]
    marked = (read(said) for read in (tagged, boxed, answer_line))
    return next((answer for answer in marked if answer is not None), said.strip())
