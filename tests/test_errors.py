from __future__ import annotations

import pytest

from agentrl.errors import suggestion


@pytest.mark.parametrize(
    ("name", "valid", "told"),
    [
        ("gropo", ["gspo", "grpo"], "did you mean 'grpo'?"),
        ("x", ["b", "a"], "valid: a, b"),
        ("x", [], "there are none"),
        ("x", [f"name{number:02}" for number in range(60)], "valid: name00, name01, name02, name03, name04, name05,"),
    ],
)
def test_the_nearest_name_is_told_else_those_there_are(name, valid, told) -> None:
    assert suggestion(name, valid).startswith(told)


def test_of_very_many_names_it_tells_some() -> None:
    assert suggestion("x", map(str, range(1000, 1060))).endswith("1007 and 52 more")
