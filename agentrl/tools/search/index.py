"""BM25 index of passages, built with bm25s. Its files are memory-mapped and contain no pickles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bm25s import BM25

_WORD = re.compile(r"\w+")
_TEXTS, _OFFSETS, _VOCABULARY = "texts.bin", "offsets.npy", "vocab.index.json"


class Hit(NamedTuple):
    """A passage that matches a query: its number, and its BM25 score."""

    number: int
    score: float


class PassageIndex:
    """An index in a folder that `build_index` wrote. Searching changes nothing, so threads may share an index.

    The scores are those of Lucene's variant of BM25. A score is a sum over the words w of the query. Each word adds
    idf(w) * tf / (tf + k1 * (1 - b + b * length / mean length)), with idf(w) = ln(1 + (N - n + 0.5) / (n + 0.5)).
    tf is how often w occurs in the passage; n of the N passages contain w.
    """

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / _OFFSETS, mmap_mode="r", allow_pickle=False)
        self._texts = np.memmap(folder / _TEXTS, dtype=np.uint8, mode="r")
        self._vocabulary: dict[str, int] = json.loads((folder / _VOCABULARY).read_text(encoding="utf-8"))
        # scores are stored as float32; float64 sums of them are exact, so equal passages have equal scores
        self._scorer = _scorer(dtype="float64")
        self._scorer.nonoccurrence_array = None
        self._scorer.load_scores(folder, num_docs=len(self), mmap=True)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def search(self, query: str, top_k: int) -> list[Hit]:
        """Return the best passages that contain at least one word of the query, sorted by score, then by position."""
        known = [self._vocabulary[word] for word in words(query) if word in self._vocabulary]
        if not known:
            return []
        scores: NDArray[np.float64] = self._scorer.get_scores_from_ids(known)
        return [Hit(int(number), float(scores[number])) for number in _best(scores, top_k)]

    def passage(self, number: int) -> str:
        """Return a passage; its first line is its title."""
        start, end = self._offsets[number : number + 2]
        return self._texts[start:end].tobytes().decode("utf-8", "replace")


def build_index(passages: Iterable[str], folder: Path, *, k1: float, b: float) -> int:
    """Write the index of `passages` to an existing folder; return their number, or 0 if no passage has a word."""
    vocabulary: dict[str, int] = {}
    offsets, word_ids = [0], []
    with (folder / _TEXTS).open("wb") as file:
        for passage in passages:
            offsets.append(offsets[-1] + file.write(passage.encode("utf-8", "replace")))
            word_ids.append([vocabulary.setdefault(word, len(vocabulary)) for word in words(passage)])
    if not vocabulary:
        return 0
    np.save(folder / _OFFSETS, np.array(offsets, dtype=np.int64), allow_pickle=False)
    scorer = _scorer(k1=k1, b=b)
    scorer.index((word_ids, vocabulary), create_empty_token=False, show_progress=False)
    scorer.save(folder, vocab_name=_VOCABULARY, show_progress=False)
    return len(word_ids)


def words(text: str) -> list[str]:
    """Return the words of a text in lower case. A word consists of letters, digits and underscores."""
    return _WORD.findall(text.lower())


def _scorer(**options: float | str) -> BM25:
    from bm25s import BM25  # an optional library

    return BM25(method="lucene", **options)


def _best(scores: NDArray[np.float64], top_k: int) -> NDArray[np.intp]:
    (matching,) = np.nonzero(scores)
    if len(matching) > top_k:
        least = np.partition(scores[matching], -top_k)[-top_k]
        matching = matching[scores[matching] >= least]
    return matching[np.argsort(-scores[matching], kind="stable")[:top_k]]
