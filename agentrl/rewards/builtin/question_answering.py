"""Rewards for short answers: search and open questions (exact match and F1), and classification."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Literal, get_args

from pydantic import JsonValue

from agentrl.errors import ConfigError, RewardError
from agentrl.utils.answers import final_answer, normalised, tagged

Metric = Literal["em", "f1", "subem"]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MAX_TAGS = 10
_OF_GOLD = ("target", "answers", "aliases", "value", "answer", "text")
_OF_LABELS = ("labels", "choices", "options", "classes")
_LETTER = re.compile(r"\(?([A-Za-z])(?:[).:]|\)?$)")


def search_qa(
    solution_str: str,
    ground_truth: JsonValue,
    metric: Metric = "em",
    format_score: float = 0.0,
    score: float = 1.0,
) -> dict[str, float]:
    """`score` if the last `<answer>` is one of the gold answers, `format_score` if it is not, 0 without `<answer>`.

    This is Search-R1's score (Jin et al. 2025, arXiv:2503.09516), with SQuAD's normalisation. More than 10 `<answer>`
    tags (many guesses) reduce the score to a quarter. With metric=f1 the score is `score` times the word F1. With
    metric=subem the gold answer may be part of a longer answer. `em` and `f1` are returned too.
    """
    golds = gold_answers(ground_truth)
    answer = tagged(solution_str)
    if answer is None:
        return {"score": 0.0, "em": 0.0, "f1": 0.0}
    found = _matched(answer, golds, metric)
    tags = max(solution_str.count("<answer>"), solution_str.count("</answer>"))
    earned = score * found["score"] * (0.25 if tags > _MAX_TAGS else 1.0)
    return {**found, "score": earned if found["score"] else format_score}


def qa(
    solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object], metric: Metric = "em"
) -> dict[str, float]:
    """1 if the answer of the last turn is one of the gold answers, with SQuAD's normalisation.

    The answer is the text in `<answer>` tags, else in `\\boxed{}`, else after `Answer:`, else the entire turn.
    `metric` has the same meaning as in `search_qa`.
    """
    answer = final_answer(str(extra_info.get("last_turn", solution_str)))
    return _matched(answer, gold_answers(ground_truth), metric)


def classification(solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]) -> float:
    """1 if the answer of the last turn (see `qa`) is the row's label; case and punctuation are ignored.

    A single letter is also read from "(B)", "B." or "B: because". If the row lists its labels (`labels`, `choices`,
    `options` or `classes`) and the answer is a sentence, the sentence must name the row's label and no other label.
    """
    answer, label = final_answer(str(extra_info.get("last_turn", solution_str))), _label(ground_truth)
    if squad_normalised(answer) == squad_normalised(label) or normalised(answer) == normalised(label):
        return 1.0
    if len(label) == 1 and label.isalpha():
        letter = _LETTER.match(answer)
        return float(letter is not None and letter[1].casefold() == label.casefold())
    labels = next((extra_info[key] for key in _OF_LABELS if isinstance(extra_info.get(key), list)), [])
    assert isinstance(labels, list)
    named = {each for each in map(str, labels) if _names(answer, each)}
    return float(named == {label})


def squad_normalised(text: str) -> str:
    """Return a text in lower case without punctuation, articles and repeated blanks.

    This is SQuAD's normalisation (Rajpurkar et al. 2016, arXiv:1606.05250). If nothing would be left, as for the
    answer "A", punctuation and articles are kept.
    """
    bare = " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())
    return bare or " ".join(text.lower().split())


def word_f1(answer: str, gold: str) -> float:
    """F1 of the words of two texts after SQuAD's normalisation: 2 * common / (words of `answer` + words of `gold`)."""
    words, expected = squad_normalised(answer).split(), squad_normalised(gold).split()
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected)) if common else float(words == expected)


def gold_answers(ground_truth: JsonValue) -> list[str]:
    """Return all accepted answers, from a string, a list, or a dict with `target`, `aliases`, `value` or similar keys.

    Raises:
        RewardError: there is no answer.
    """
    if golds := [text for text in _texts(ground_truth) if text.strip()]:
        return golds
    raise RewardError(f"the ground truth {ground_truth!r:.100} contains no answer")


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = [value[key] for key in _OF_GOLD if key in value]
    if isinstance(value, list):
        yield from chain.from_iterable(map(_texts, value))
    elif value is not None:
        yield str(value)


def _matched(answer: str, golds: list[str], metric: Metric) -> dict[str, float]:
    if metric not in get_args(Metric):
        raise ConfigError.keyless(f"metric must be {', '.join(get_args(Metric))}, not '{metric}'")
    normalized, expected = squad_normalised(answer), [squad_normalised(gold) for gold in golds]
    found = {"em": float(normalized in expected), "f1": max(word_f1(answer, gold) for gold in golds)}
    inside = float(any(gold in normalized for gold in expected))
    return {"score": inside if metric == "subem" else found[metric], **found}


def _label(ground_truth: JsonValue) -> str:
    if isinstance(ground_truth, Mapping):
        ground_truth = ground_truth.get("label")
    if ground_truth is None or isinstance(ground_truth, (list, dict)):
        raise RewardError(f"the ground truth {ground_truth!r:.100} is not a label")
    return str(ground_truth)


def _names(text: str, label: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(label)}(?!\w)", text, re.IGNORECASE) is not None
