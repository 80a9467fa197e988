"""Written YAML reads back to the same values, for any text."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentrl.utils.yaml_text import yaml_text

TEXT = st.text(max_size=20)
VALUES = st.recursive(
    TEXT | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_yaml_round_trip_preserves_values(values):
    assert yaml.safe_load(yaml_text(values)) == values


def test_yaml_text_keeps_order_and_letters():
    assert yaml_text({"b": "ü 漢", "a": 1}) == "b: ü 漢\na: 1\n"


def test_lone_surrogates_are_written():
    assert "a" in yaml.safe_load(yaml_text({"a": "\ud800"}))
