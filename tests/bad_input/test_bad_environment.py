"""Environments that cannot be used are refused before a model is loaded; errors of `reset` name their row."""

from __future__ import annotations

import pytest

KEY = "rollout.multi_turn.environment"
WORLD = """
class World:
    def reset(self, size=1):
        {reset}

    def act(self, x: int) -> str:
        'Acts.'
        {act}

    def reward(self):
        {reward}
"""


def world(bad, reset="pass", act="return 'acted'", reward="return 1", name="World") -> list[str]:
    bad.write("world.py", WORLD.format(reset=reset, act=act, reward=reward))
    bad.calls("act", x=1)
    return [f"{KEY}={bad.folder}/world.py:{name}"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Wrld", "'{file}' has no 'Wrld': did you mean 'World'?"),
        (
            "World",
            "environment 'World': it cannot be created (it is called without arguments): NameError: name 'oh' is",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(bad, name, complaint):
    words = world(bad, name=name)
    if name == "World":
        bad.write("world.py", "class World:\n    def __init__(self):\n        oh\n")
    line = bad.refused(*words)
    assert line.startswith(f"'{KEY}': {complaint.format(file=bad.folder / 'world.py')}")


def test_a_missing_file_is_named(bad):
    assert bad.refused(f"{KEY}={bad.folder}/none.py:World") == f"'{KEY}': there is no file '{bad.folder}/none.py'"


@pytest.mark.slow
def test_a_row_without_an_argument_of_reset_is_refused(bad):
    bad.write("world.py", WORLD.format(reset="pass", act="pass", reward="pass").replace("size=1", "size"))
    line = bad.refused(f"{KEY}={bad.folder}/world.py:World")
    assert "row 0" in line
    assert "reset of environment 'World' needs 'size', which the row does not have" in line


@pytest.mark.slow
def test_a_reset_that_raises_ends_the_run_with_the_row(bad):
    line = bad.refused(*world(bad, reset="raise KeyError('map')"))
    assert "of environment 'World' raised KeyError: 'map' (" in line
    assert line.startswith("row ")


@pytest.mark.slow
def test_a_reward_that_raises_ends_the_run_with_the_row(bad):
    line = bad.refused(*world(bad, reward="return 'much'"))
    assert "reward of environment 'World'" in line
    assert "expected a finite number" in line


@pytest.mark.slow
def test_errors_of_methods_are_data(bad):
    row = bad.goes_on(*world(bad, act="raise KeyError(x)"))
    assert row["tool/act/tool_error"] == row["tool/act/calls"] == 8
