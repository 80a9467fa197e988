from __future__ import annotations

from decimal import Decimal

import pytest

from agentrl.utils.answers import answer_line, as_number, boxed, final_answer, final_number, normalised, tagged


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("so 3 + 4 = 7\n#### 7", "7", "7"),
        ("#### 1,234.50", "1234.50", "1234.50"),
        ("#### $18.", "18", "18"),
        ("#### -5", "-5", "-5"),
        ("####7 and later #### 8, or 9", "8", "9"),
        ("The answer is 72.", None, "72"),
        ("costs $1,000 each.", None, "1000"),
        ("it is .5", None, "0.5"),
        ("none... , at all", None, None),
        ("", None, None),
    ],
)
def test_final_number_is_read_strictly_or_flexibly(text, strict, flexible):
    assert final_number(text, "strict") == (strict and Decimal(strict))
    assert final_number(text, "flexible") == (flexible and Decimal(flexible))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("72", 72),
        (72, 72),
        (72.5, 72.5),
        ("1,000", 1000),
        ("long\n#### 5", 5),
        ("x", None),
        ("nan", None),
        (None, None),
    ],
)
def test_ground_truths_are_read_as_numbers(value, number):
    assert as_number(value) == number


def test_text_is_normalised():
    assert normalised("<think>It was Lyon.</think>\n Paris  is\tIT. ") == "paris is it"
    assert normalised("ｆｕｌｌ") == "full"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{42}$.", "42"),
        (r"\boxed{1} and then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{a}", "a"),
        (r"$\boxed 7$ is it", "7"),
        (r"\boxed {x^{2}}", "x^{2}"),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right."),
        (r"\boxed{\text{a \} b}}", r"\text{a \} b}"),
        (r"\boxed{never closed", None),
        (r"\boxedness{1}", None),
        (r"\boxed", None),
        ("42", None),
    ],
)
def test_boxed_answers_are_read(text, answer):
    assert boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> a </answer>", "a"),
        ("<answer>a</answer> or <answer>b</answer>", "b"),
        ("<answer>a</answer> and </answer>", "a"),
        ("<answer>a <answer>b</answer>", "b"),
        ("<answer>a</answer> <answer>cut off", "a"),
        ("<answer></answer>", ""),
        ("</answer> <answer>", None),
        ("<answer>", None),
        ("", None),
        ("<answer>" * 20_000, None),
        ("<answer>" * 20_000 + "a</answer>" * 20_000, "a"),
    ],
)
def test_tagged_answers_are_read(text, answer):
    assert tagged(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 7", "7"),
        ("so\nANSWER :  7 \nas I said", "7"),
        ("**Answer:** 7", "7"),
        ("**Answer: 7**", "7"),
        ("Answer: 1\nAnswer:\n2", "2"),
        ("the answer is 7", None),
        ("Answer:", None),
        ("nonanswer: 7", None),
    ],
)
def test_answer_on_a_separate_line_is_read(text, answer):
    assert answer_line(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<answer>1</answer> \boxed{2} Answer: 3", "1"),
        (r"\boxed{2} Answer: 3", "2"),
        ("so. Answer: 3", "3"),
        ("<think>Answer: 4</think> five ", "five"),
    ],
)
def test_final_answer_in_many_notations(text, answer):
    assert final_answer(text) == answer
