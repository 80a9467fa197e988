from __future__ import annotations

import pytest

from agentrl.errors import RewardError
from agentrl.rewards.builtin.math_answers import plainly_same, same_by_algebra, truths_of


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("7", "7"),
        ("7.0", "7"),
        ("1,000", "1000"),
        ("1{,}000", "1000"),
        (r"\frac12", "0.5"),
        (r"-\frac{1}{2}", "-.5"),
        (r"\dfrac{3}{4}", "3/4"),
        (r"\$5", "5"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        (r"\text{Monday}", "monday"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        ("7.", "7"),
    ],
)
def test_equal_answers_in_other_notations_are_equal(answer, truth):
    assert plainly_same(answer, truth) is True


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("8", "7"),
        ("1/3", "0.333"),
        ("Mondya", "Monday"),  # algebra would treat the letters as factors
        ("", "7"),
        ("", ""),
        ("1,2", "12"),
        ("9" * 2000, "x"),
        (r"\frac{1}{0}", "1"),
    ],
)
def test_different_answers_are_not_equal(answer, truth):
    assert plainly_same(answer, truth) is not True
    if answer != r"\frac{1}{0}" and answer != "1,2":
        assert plainly_same(answer, truth) is False


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("x^2+2x+1", "(x+1)^2", True),
        (r"\sqrt{3}/2", r"\frac{\sqrt3}{2}", True),
        (r"\{2, 1\}", r"\{1,2\}", True),
        ("x = 5", "5", True),
        (r"12\text{ cm}", "12", True),
        (r"2\pi", "6.28", False),
        ("[0, 1)", "[0, 1]", False),
        (r"\frac{3", "3", False),
        ("p-q", "q-p", False),
    ],
)
def test_algebraic_equality_is_detected(answer, truth, same):
    assert plainly_same(answer, truth) is None
    assert same_by_algebra(answer, truth) == same


def test_math_ground_truths_are_read():
    assert truths_of(7) == ["7"]
    assert truths_of(r"so \boxed{\frac12}") == [r"\frac12"]
    assert truths_of(["1", "work\n#### 2"]) == ["1", "2"]
    for nothing in (None, [], {"a": 1}, " ", r"\boxed{}", "####"):
        with pytest.raises(RewardError, match="contains no answer"):
            truths_of(nothing)
