"""YAML that is written: read again it is the same, whatever the text."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.utils.yaml_text import yaml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    TEXT | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@settings(max_examples=30)  # the Python parser is slow
@given(st.dictionaries(TEXT, VALUES))
def test_what_is_read_is_what_was_written(values):
    assert yaml.safe_load(yaml_text(values)) == values


def test_order_and_letters_stay():
    assert yaml_text({"b": "ü 漢", "a": 1}) == "b: ü 漢\na: 1\n"


def test_a_lone_surrogate_is_written_too():
    assert "a" in yaml.safe_load(yaml_text({"a": "\ud800"}))
