"""JSON of other machines: the fast parser gives what the standard library gives, within the limits."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.security.bounded_json import UnreadableAnswerError, read_json

NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES, st.booleans())
@example(2**63, False)
@example(-(2**63) - 1, False)
@example(2**64, False)
@example(10**18, False)
@example({"a": "\ud800"}, True)
def test_values_and_their_types_are_those_of_the_standard_library(value, as_ascii):
    text = json.dumps(value, ensure_ascii=as_ascii)
    for form in (text, text.encode("utf-8", "surrogatepass")):
        assert repr(read_json(form)) == repr(json.loads(text))


def test_the_last_of_equal_keys_counts():
    assert read_json(b'{"a": 1, "a": 2}') == {"a": 2}


def test_bytes_that_are_no_text_are_replaced():
    assert read_json(b'"a\xff"') == "a�"


@pytest.mark.parametrize("inner", [b"", b"1", b'"x"'])
def test_nesting_is_bounded(inner):
    assert read_json(b"[" * 64 + inner + b"]" * 64)
    assert read_json(b'{"a":' * 63 + b"[" + inner + b"]" + b"}" * 63)
    with pytest.raises(UnreadableAnswerError, match="nested too deeply"):
        read_json(b"[" * 65 + inner + b"]" * 65)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "", "{", "01", "1" * 301, "'a'"])
def test_other_text_is_refused(text):
    with pytest.raises(UnreadableAnswerError):
        read_json(text)
