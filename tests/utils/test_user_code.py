from __future__ import annotations

import json

import pytest

from agentrl.errors import UnknownNameError
from agentrl.registry import load_module
from agentrl.utils.user_code import defined_at, format_error


def failure(code) -> Exception:
    with pytest.raises((ValueError, UnknownNameError)) as raised:
        code()
    return raised.value


def test_error_location_is_the_innermost_user_frame():
    def outer():
        inner()

    def inner():
        json.loads("{")

    line = inner.__code__.co_firstlineno + 1
    assert format_error(failure(outer)).endswith(f"(char 1) ({__file__}:{line})")


def test_library_frame_is_not_a_user_location():
    error = failure(lambda: load_module("no.such.module"))
    assert format_error(error.__cause__) == "ModuleNotFoundError: No module named 'no'"


def test_any_text_is_one_line():
    class Odd(Exception):
        def __str__(self):
            raise ValueError

    assert format_error(Odd()) == "Odd: (its text cannot be shown)"
    assert format_error(ValueError("one\n two")) == "ValueError: one two"
    assert format_error(KeyError()) == "KeyError:"


def test_syntax_error_is_located_in_the_user_file(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("x = 1\ny = (\n")
    error = failure(lambda: load_module(str(file)))
    assert str(error) == f"cannot import '{file}': SyntaxError: '(' was never closed ({file}:2)"


def test_location_of_a_function():
    assert defined_at(failure) == f" ({__file__}:{failure.__code__.co_firstlineno})"
    assert defined_at(format_error) == defined_at(json.loads) == defined_at(max) == ""
