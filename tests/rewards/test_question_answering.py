from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, RewardError
from agentrl.rewards.builtin.question_answering import (
    classification,
    gold_answers,
    qa,
    search_qa,
    squad_normalised,
    word_f1,
)


@pytest.mark.parametrize(
    ("text", "truth", "em", "f1"),
    [
        ("<answer>The Eiffel Tower.</answer>", "eiffel tower", 1.0, 1.0),
        ("<answer>Lyon</answer> no: <answer> Paris </answer>", {"target": ["Lyon!", "paris"]}, 1.0, 1.0),
        ("<answer>the tower of Eiffel</answer>", "Eiffel Tower", 0.0, 0.8),
        ("<answer>Rome</answer>", "Paris", 0.0, 0.0),
        ("<answer></answer>", "Paris", 0.0, 0.0),
        ("Paris", "Paris", 0.0, 0.0),
        ("<answer>Paris", "Paris", 0.0, 0.0),
        ("<answer>Paris\nFrance</answer>", ["paris france"], 1.0, 1.0),
    ],
)
def test_search_qa_scores_exact_match_and_f1(text, truth, em, f1):
    found = search_qa(text, truth)
    assert found == {"score": em, "em": em, "f1": pytest.approx(f1)}
    assert search_qa(text, truth, metric="f1")["score"] == pytest.approx(f1)


def test_options_of_search_questions():
    assert search_qa("<answer>Rome</answer>", "Paris", format_score=0.1)["score"] == 0.1
    assert search_qa("Rome", "Paris", format_score=0.1)["score"] == 0.0
    assert search_qa("<answer>It is Paris, I think</answer>", "Paris", metric="subem")["score"] == 1.0
    assert search_qa("<answer>Paris</answer>" * 10, "Paris")["score"] == 1.0
    assert search_qa("<answer>Paris</answer>" * 11, "Paris", score=2.0)["score"] == 0.5
    with pytest.raises(ConfigError, match="metric must be em, f1, subem, not 'bleu'"):
        search_qa("<answer>Paris</answer>", "Paris", metric="bleu")


@pytest.mark.parametrize(
    "text",
    [
        "Paris",
        "paris.",
        "<think>Lyon? <answer>Lyon</answer></think> Paris",
        "I looked it up. Answer: Paris",
        "**Answer:** Paris\n",
        r"So \boxed{Paris}.",
        "<answer>Paris</answer>, as is well known",
    ],
)
def test_qa_finds_the_answer_in_the_last_turn(text):
    assert qa("a first turn\n" + text, ["Lutetia", "Paris"], {"last_turn": text})["score"] == 1.0
    assert qa(text, "Lyon", {})["score"] == 0.0


def test_gold_answers_are_read_from_each_format():
    trivia = {"value": "Paris", "aliases": ["City of Light", "Paris"], "normalized_value": "paris"}
    assert set(gold_answers(trivia)) == {"Paris", "City of Light"}
    assert gold_answers(7) == ["7"]
    for nothing in (None, []):
        with pytest.raises(RewardError, match="contains no answer"):
            gold_answers(nothing)
    with pytest.raises(RewardError, match="contains no answer"):
        qa("Paris", {"target": []}, {})


@pytest.mark.parametrize(
    ("text", "label", "score"),
    [
        ("positive", "Positive", 1.0),
        ("It is positive.", "positive", 1.0),
        ("It is not negative but positive.", "positive", 0.0),  # the text contains both words
        ("Answer: negative", "positive", 0.0),
        ("nonpositive", "positive", 0.0),
        ("", "positive", 0.0),
    ],
)
def test_classification_scores_the_named_label(text, label, score):
    assert classification(text, label, {"labels": ["positive", "negative"]}) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("B", 1.0),
        ("(B)", 1.0),
        ("b.", 1.0),
        ("B: since", 1.0),
        ("Answer: (B) Paris", 1.0),
        ("A", 0.0),
        ("Because", 0.0),
    ],
)
def test_classification_accepts_a_letter(text, score):
    assert classification(text, "B", {}) == score
    with pytest.raises(RewardError, match="is not a label"):
        classification(text, None, {})


words = st.text(alphabet="ab c,.", max_size=12)


@given(words, words)
def test_f1_is_a_symmetric_share(one, other):
    value = word_f1(one, other)
    assert 0 <= value <= 1
    assert value == word_f1(other, one)
    assert (value == 1) == (sorted(squad_normalised(one).split()) == sorted(squad_normalised(other).split()))


def test_answer_that_is_an_article_is_not_empty():
    for said, right in (("A", 1.0), ("a", 1.0), ("The", 0.0), ("", 0.0), ("B", 0.0)):
        found = search_qa(f"<answer>{said}</answer>", "A")
        assert (found["em"], found["f1"]) == (right, right)
    assert search_qa("<answer>Berlin</answer>", "The", metric="subem")["score"] == 0.0


def test_row_without_ground_truth_is_always_refused():
    for nothing in (None, [], {}, "", [" "], {"target": []}):
        with pytest.raises(RewardError, match="contains no answer"):
            search_qa("no tags", nothing)
