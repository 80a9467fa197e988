"""Replay output: tables that fit, escaped text and finite JSON, on the terminal, in a file and on a page."""

from __future__ import annotations

import io
import json
import math
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from agentrl.replay.base import Result, Table
from agentrl.replay.output.cells import cell_text
from agentrl.replay.output.html import findings_page
from agentrl.replay.output.json import findings_json
from agentrl.replay.output.tables import print_result
from agentrl.replay.saved_run import SavedRun
from agentrl.stats.base import Estimate

RUN = cast(SavedRun, SimpleNamespace(name="run<b>", split="train", steps=[1], description="train, step 1"))
HOSTILE = (
    "<script>alert(1)</script> <img src=x onerror=alert(1)> &amp; \u202eevil\u202c \x1b[31m\x07 \ud83d {{ 1 }}"
    " [red]x[/red]"
)


def result(*tables: Table, **values: Any) -> Result:
    return Result("mode", "what was found", tables, values)


def printed(one: Result, width: int = 80) -> str:
    file = io.StringIO()
    print_result(one, Console(file=file, width=width, highlight=False))
    return file.getvalue()


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        (1234567, "1,234,567"),
        (0.123456, "0.1235"),
        (math.nan, "nan"),
        (1e-9, "1e-9"),
        (Estimate(0.5, 0.25, 0.75, 4), "0.5 [0.25, 0.75]"),
        (Estimate(0.5, None, None, 1), "0.5"),
        ("a\x1b[0mb", "a⟨U+001B⟩[0mb"),
        ("x" * 3000, "x" * 2000 + "… (1,000 more characters)"),
    ],
)
def test_table_cell_formatting(cell, text):
    assert cell_text(cell) == text


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), max_size=30)
estimates = st.builds(lambda value: Estimate(value, value - 1, value + 1, 3), st.floats(-1e6, 1e6))
cells = st.one_of(st.none(), st.integers(-(10**6), 10**6), st.floats(), estimates, words)


@example([[None] * 6 + [Estimate(9999.0, 9998.0, 10000.0, 3)]])
@given(
    st.integers(1, 9).flatmap(
        lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=4)
    )
)
def test_lines_wrap_to_the_terminal_without_losing_text(rows):
    table = Table("title", [f"column {number}" for number in range(len(rows[0]))], rows, "note")
    text = printed(result(table))
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    shown = "".join(text.split())
    for row in rows:
        for cell in row:
            if not isinstance(cell, str):
                assert "".join(cell_text(cell).split()) in shown


def test_text_columns_share_the_width_left_by_numbers():
    row = [Estimate(9999.0, 9998.0, 10000.0, 3), "of twenty-five characters", "of many more words " * 9]
    lines = printed(result(Table("t", ["n", "a", "b"], [row]))).splitlines()
    assert lines[6].rstrip() == "9,999 [9,998, 10,000]  of twenty-five characters  of many more words of many"


def test_a_table_that_is_too_wide_is_read_row_by_row():
    columns = [f"name{number}" for number in range(8)]
    text = printed(result(Table("wide", columns, [[f"a_rather_long_value_{number}" for number in range(8)]])))
    assert [line.split() for line in text.splitlines() if line.startswith("name")] == [
        [name, f"a_rather_long_value_{number}"] for number, name in enumerate(columns)
    ]


def test_model_text_cannot_control_the_terminal_or_the_markup():
    text = printed(Result("mode", HOSTILE, [Table(HOSTILE, [HOSTILE], [[HOSTILE]], HOSTILE)]), width=300)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\ud800-\udfff]", text)
    assert text.count("⟨U+202E⟩") == 5
    assert text.count("[red]x[/red]") == 5


def test_json_is_complete_finite_and_keeps_keys():
    table = Table("t", ["a", "b", "c"], [[math.inf, Estimate(1.0, None, math.nan, 1), HOSTILE]], "n")
    text = findings_json(RUN, [result(table, score=math.nan, nested={"a": [1, None, True, -math.inf]}, text=HOSTILE)])
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert text.isascii()
    (found,) = document["results"]
    assert document["run"] == {"name": "run<b>", "split": "train", "steps": [1]}
    assert list(found) == ["mode", "summary", "failed", "values", "tables"]
    assert found["values"] == {"score": None, "nested": {"a": [1, None, True, None]}, "text": HOSTILE}
    assert found["tables"][0]["rows"] == [[None, {"value": 1.0, "low": None, "high": None, "num": 1}, HOSTILE]]


def test_value_without_json_form_is_an_internal_error():
    with pytest.raises(TypeError, match="cannot convert a set to JSON"):
        findings_json(RUN, [result(odd=cast(Any, {1}))])


class Page(HTMLParser):
    """Tags with their attributes, and the text between tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@settings(max_examples=25)
@given(st.text())
def test_page_escapes_all_text(text):
    plain, hostile = (
        Page(findings_page(RUN, [Result("mode", cell, [Table(cell, ["a"], [[cell]], cell)])]))
        for cell in ("x y", f"x {text}")
    )
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]


def test_a_page_runs_and_loads_nothing():
    gigantic = "y" * 10**6
    page = findings_page(
        RUN, [Result("mode", HOSTILE, [Table("t", ["a"], [[HOSTILE], [gigantic], [0.5]])], failed=True)]
    )
    read = Page(page)
    assert len(page) < 20_000
    assert "… (998,000 more characters)" in read.text
    assert "<script>alert(1)</script> <img src=x onerror=alert(1)> &amp; ⟨U+202E⟩evil⟨U+202C⟩ ⟨U+001B⟩[31m" in read.text
    assert {tag for tag, _ in read.tags}.isdisjoint({"script", "img", "link", "iframe", "object", "a"})
    assert not any(
        name.startswith("on") or name in ("src", "href") for _, attributes in read.tags for name in attributes
    )
    assert "url(" not in page
    assert "failed" in read.text
    assert "train, step 1" in read.text
    page.encode()
