"""The contract of `parser_contract.py` for every built-in parser."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import (
    CONTENTS,
    THOUGHTS,
    Format,
    by_name,
    check_any_text,
    check_cut,
    check_cut_thoughts,
    check_round_trip,
    fuzzed,
    long_texts,
)

from agentrl.chat.parsers import tool_parsers

MODULES = sorted(path.stem for path in (Path(__file__).parent / "parser_formats").glob("*.py"))
FORMATS = by_name([importlib.import_module(f"parser_formats.{name}").FORMAT for name in MODULES])
LONG = 250_000
"""Characters, in further cases."""
NUM_FUZZED = 1_000_000
"""Fuzzed texts of the slow test, over all parsers together."""

formats = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
contents, some_thoughts = st.sampled_from(CONTENTS), st.sampled_from(["", *THOUGHTS])


def test_every_builtin_parser_has_a_format() -> None:
    assert sorted(FORMATS) == tool_parsers.builtins()


@pytest.mark.one_in(3)
@formats
@given(data=st.data())
def test_turns_are_parsed_as_they_were_written(form: Format, data: st.DataObject) -> None:
    check_round_trip(form, data.draw(contents), data.draw(some_thoughts), data.draw(form.calls()))


@pytest.mark.slow
@pytest.mark.one_in(3)
@formats
@given(data=st.data())
def test_cut_turns_have_no_other_calls(form: Format, data: st.DataObject) -> None:
    calls = data.draw(form.calls(max_size=2))
    thoughts = form.write_thoughts(THOUGHTS[0]) if data.draw(st.booleans()) else ""
    check_cut(form, thoughts + form.write(data.draw(contents), calls), calls)


@formats
@pytest.mark.parametrize("thoughts", THOUGHTS)
def test_calls_in_thoughts_are_not_made(form: Format, thoughts: str) -> None:
    check_cut_thoughts(form, thoughts, [("f", {"q": "x", "options": {"deep": [True, None]}})])


@formats
@given(text=st.text())
def test_any_text_is_parsed(form: Format, text: str) -> None:
    check_any_text(form.parser(), text)


@formats
@pytest.mark.one_in(4)
def test_broken_turns(form: Format) -> None:
    parser = form.parser()
    for text in fuzzed(form, 2_000, seed=0):
        check_any_text(parser, text)


@pytest.mark.slow
@pytest.mark.property
@formats
@pytest.mark.one_in(4)
def test_broken_turns_by_the_million(form: Format) -> None:
    parser = form.parser()
    for text in fuzzed(form, -(-NUM_FUZZED // len(FORMATS)), seed=1):
        check_any_text(parser, text)


def long_cases() -> Iterator[ParameterSet]:
    for name, form in FORMATS.items():
        for size in (30_000, LONG):
            is_slow = size > 30_000 or name == "tokenizer"  # the latter starts processes
            yield pytest.param(form, size, marks=pytest.mark.slow if is_slow else (), id=f"{name}-{size}")


@pytest.mark.property
@pytest.mark.one_in(6)
@pytest.mark.parametrize(("form", "size"), list(long_cases()))
def test_long_text_takes_linear_time(form: Format, size: int) -> None:
    """Linear parsing of these texts takes tenths of a second; quadratic parsing takes minutes."""
    parser = form.parser()
    for text in long_texts(form, size):
        begin = time.process_time()
        parser.parse(text)
        assert time.process_time() - begin < 2 + size / 100_000, text[:40]
