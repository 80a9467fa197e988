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
