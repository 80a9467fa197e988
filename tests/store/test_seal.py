from __future__ import annotations

from struct import pack
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.store.checksums import seals


def number(said: bytes) -> int:
    return crc32(said)


NAMED = pa.list_(pa.struct({"name": pa.string(), "value": pa.float64()}.items()))


def test_the_worked_example_of_the_docstring():
    calls = pa.list_(pa.struct([pa.field("name", pa.string())]))
    (row,) = seals([pa.array([[{"name": "f"}, {"name": "go"}]], calls)]).to_pylist()
    assert row == [number(pack("<iii", 2, 1, 2) + b"fgo")]


def test_every_kind_of_value_as_the_specification_says():
    columns = [
        pa.array([7, -1], pa.int64()),
        pa.array([True, False]),
        pa.array([None, "é"], pa.string()),
        pa.array([[0.5], None], pa.list_(pa.float64())),
        pa.array([[{"name": "a", "value": 1.0}], []], NAMED),
        pa.array([[[1, 2], []], []], pa.list_(pa.list_(pa.int32()))),
    ]
    assert seals(columns).to_pylist() == [
        [
            number(pack("<q", 7)),
            number(b"\1"),
            number(pack("<i", -1)),
            number(pack("<id", 1, 0.5)),
            number(pack("<ii", 1, 1) + b"a"),
            number(pack("<id", 1, 1.0)),
            number(pack("<iii", 2, 2, 0) + pack("<ii", 1, 2)),
        ],
        [
            number(pack("<q", -1)),
            number(b"\0"),
            number(pack("<i", 2) + "é".encode()),
            number(pack("<i", -1)),
            number(pack("<i", 0)),
            number(pack("<i", 0)),
            number(pack("<i", 0)),
        ],
    ]


NESTED = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), min_size=1, max_size=4)


@given(NESTED, st.integers(0, 3))
def test_row_seals_do_not_depend_on_the_position(rows: list[list[list[int]]], start: int):
    kind = pa.list_(pa.list_(pa.int32()))
    alone = [seals([pa.array([row], kind)]).to_pylist()[0] for row in rows]
    assert seals([pa.array(rows, kind)]).to_pylist() == alone
    if start < len(rows):
        assert seals([pa.array(rows, kind).slice(start)]).to_pylist() == alone[start:]


@given(NESTED, NESTED)
def test_rows_that_differ_have_other_seals(one: list[list[list[int]]], other: list[list[list[int]]]):
    kind = pa.list_(pa.list_(pa.int32()))
    same = seals([pa.array([one], pa.list_(kind))]) == seals([pa.array([other], pa.list_(kind))])
    assert same == (one == other)


@pytest.mark.parametrize("said", [["train"] * 5, ["train", "value", "other", "a", ""], ["eight by"] * 4 + ["bytes..."]])
def test_seals_are_the_same_on_the_fast_path(said: list[str]):
    """Rows with equal sizes or equal texts use a faster code path."""
    expected = [[number(pack("<i", len(text)) + text.encode())] for text in said]
    assert seals([pa.array(said)]).to_pylist() == expected
    lists = pa.array([[text, "x"] for text in said], pa.list_(pa.string()))
    expected = [[number(pack("<iii", 2, len(text), 1) + text.encode() + b"x")] for text in said]
    assert seals([lists]).to_pylist() == expected
