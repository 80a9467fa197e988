from __future__ import annotations

import pytest

from agentrl.errors import ConfigError, DataError, Kind, Problem, problems_in, suggestion


@pytest.mark.parametrize(
    ("name", "valid", "told"),
    [
        ("gropo", ["gspo", "grpo"], "did you mean 'grpo'?"),
        ("x", ["b", "a"], "valid: a, b"),
        ("x", [], "there are none"),
        ("x", [f"name{number:02}" for number in range(60)], "valid: name00, name01, name02, name03, name04, name05,"),
    ],
)
def test_nearest_name_is_suggested_or_all_names_listed(name, valid, told) -> None:
    assert suggestion(name, valid).startswith(told)


def test_long_lists_of_names_are_truncated() -> None:
    assert suggestion("x", map(str, range(1000, 1060))).endswith("1007 and 52 more")


def test_problem_shows_verl_key_names():
    problem = Problem("a.b", Kind.UNUSED, "`a.b=1` has no effect without `c.d`; see `agentrl config`")
    assert problem.line() == "'a.b=1' has no effect without 'c.d'; see `agentrl config`"
    assert problem.line(str.upper) == "'A.B=1' has no effect without 'C.D'; see `agentrl config`"
    assert problem.mentions("a.b")
    assert problem.mentions("c.d")
    assert problem.mentions("a")
    assert not problem.mentions("d.e")
    assert not problem.mentions("b")  # a part of a name does not count as the key
    assert Problem("", Kind.OTHER, "a.b: no").mentions("a.b")


def test_an_error_keeps_its_problems():
    error = ConfigError(problem := Problem("a", Kind.MISSING, "`a` must be given"), "two\nlines")
    assert error.problems == [problem, Problem("", Kind.OTHER, "two"), Problem("", Kind.OTHER, "lines")]
    assert str(error) == "'a' must be given\ntwo\nlines"
    assert str(error.shown_as(str.upper)) == "'A' must be given\ntwo\nlines"
    assert problems_in(DataError("rows.jsonl: empty")) == [Problem("", Kind.OTHER, "rows.jsonl: empty")]
