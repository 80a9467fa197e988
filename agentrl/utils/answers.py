"""Extraction of final answers from text; shared by rewards, tools and interactions."""

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
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # escaped braces such as \{ do not count


def final_number(text: str, method: NumberMethod = "strict") -> Decimal | None:
    """Return the final number of a solution, or None; thousands separators and `$` are ignored.

    `strict` reads the last `#### 1,234`, the format of GSM8K's solutions (Cobbe et al. 2021, arXiv:2110.14168);
    `flexible` reads the last number of any kind.
    """
    found = (_MARKED if method == "strict" else _ANY).findall(text)
    return as_number(found[-1]) if found else None


def as_number(value: object) -> Decimal | None:
    """Return the number in a ground truth, which may be a number, a text or a solution with the answer after `####`."""
    text = str(value).rpartition("####")[2].strip().replace(",", "").replace("$", "")
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def normalised(text: object) -> str:
    """Return text in lower case. Reasoning before `</think>`, repeated blanks and a final full stop are removed."""
    answer = unicodedata.normalize("NFKC", str(text)).rpartition("</think>")[2]
    return " ".join(answer.casefold().split()).removesuffix(".").rstrip()


def boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` of a solution; None if it is missing or not closed.

    This is the format of MATH's solutions (Hendrycks et al. 2021, arXiv:2103.03874). `\fbox{...}` and `\boxed 5` are
    read, too.
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
    """Return the content of the last `<answer>...</answer>` of a solution, or None."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    begin = text.rfind(
        opening, 0, max(text.rfind(closing), 0)
    )  # no regular expression: it is slow on text with many tags
    if begin < 0:
        return None
    begin += len(opening)
    return text[begin : text.index(closing, begin)].strip()


def answer_line(text: str) -> str | None:
    """Return the rest of the line after the last `Answer:`, without emphasis marks; None if `Answer:` is missing.

    DAPO's prompts ask for this format (Yu et al. 2025, arXiv:2503.14476).
    """
    found = _ANSWER_LINE.findall(text)
    return found[-1].strip().strip("*").strip() if found else None


def final_answer(text: str) -> str:
    """Return the final answer of a text, after removing everything up to `</think>`.

    The first of these functions that finds an answer is used: `tagged`, `boxed`, `answer_line`. If none finds one, the
    answer is the complete remaining text.
    """
    answer_text = text.rpartition("</think>")[2]
    marked = (read(answer_text) for read in (tagged, boxed, answer_line))
    return next((answer for answer in marked if answer is not None), answer_text.strip())
