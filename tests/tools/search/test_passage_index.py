"""BM25 against the formula in float64."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from agentrl.tools.search.index import PassageIndex, build_index, words

K1, B = 1.2, 0.75


@pytest.fixture
def index(tmp_path):
    def build(passages, k1=K1, b=B):
        (tmp_path / "index").mkdir()
        assert build_index(passages, tmp_path / "index", k1=k1, b=b) == len(passages)
        return PassageIndex(tmp_path / "index")

    return build


def reference(passages, query, k1, b):
    """Scores of Lucene's BM25 (Kamphuis et al. 2020, table 1, without the constant factor k1 + 1)."""
    counts = [Counter(words(passage)) for passage in passages]
    lengths = [sum(count.values()) for count in counts]
    mean = math.fsum(lengths) / len(lengths)
    asked = words(query)
    containing = {word: sum(word in count for count in counts) for word in asked}

    def term(word, tf, length):
        n = containing[word]
        idf = math.log(1 + (len(counts) - n + 0.5) / (n + 0.5))
        return idf * tf / (tf + k1 * (1 - b + b * length / mean)) if tf else 0.0

    return [
        math.fsum(term(word, count[word], length) for word in asked)
        for count, length in zip(counts, lengths, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("k1", "b"), [(K1, B), (0.9, 0.4), (2.0, 0.0), (0.0, 1.0)])
def test_scores_and_ranking_are_those_of_the_formula(index, k1, b):
    rng = random.Random(1)
    names = [f"w{number}" for number in range(60)]
    weights = [1 / (rank + 1) for rank in range(60)]
    passages = [f"T{n}\n" + " ".join(rng.choices(names, weights, k=rng.randint(0, 40))) for n in range(300)]
    built = index(passages, k1, b)
    for _ in range(50):
        query = " ".join(rng.choices([*names, "unknown"], k=rng.randint(1, 6)))
        expected = reference(passages, query, k1, b)
        ranking = sorted((number for number, score in enumerate(expected) if score), key=lambda n: (-expected[n], n))
        hits = built.search(query, 10)
        assert [hit.number for hit in hits] == ranking[:10]
        assert [hit.score for hit in hits] == pytest.approx([expected[hit.number] for hit in hits], rel=1e-6)


def test_of_equal_scores_the_earlier_passage_is_first(index):
    built = index([f"T{number % 2}\na b c d" for number in range(100)])
    for query in ("a", "d c b a", "a d b c"):
        assert [hit.number for hit in built.search(query, 7)] == [0, 1, 2, 3, 4, 5, 6]
    assert len(built.search("a", 1000)) == 100


def test_a_query_without_known_words_finds_nothing(index):
    built = index(["A\nb", "C\nd"])
    assert built.search("nothing !?", 3) == []
    assert built.search("", 3) == []
    assert [hit.number for hit in built.search("B, unknown", 3)] == [0]


def test_passages_are_kept_as_they_are(index):
    passages = ["Tïtle\nline 1\nline 2 日本", "\n", "x\n" + "y" * 10_000]
    built = index(passages)
    assert [built.passage(number) for number in range(3)] == passages
    assert [hit.number for hit in built.search("TÏTLE", 3)] == [0]


def test_passages_without_words_have_no_index(tmp_path):
    assert build_index(["!\n?"], tmp_path, k1=K1, b=B) == 0
