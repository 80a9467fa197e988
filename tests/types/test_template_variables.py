"""Variables of the chat template in rows."""

from __future__ import annotations

import inspect

import pytest
from transformers import PreTrainedTokenizerBase

from agentrl.errors import DataError
from agentrl.types.template_variables import RESERVED, read_template_variables


def test_plain_values_are_read_and_nulls_are_not_given():
    given = {"enable_thinking": False, "effort": "low", "budget": 3, "share": 0.5, "absent": None}
    assert read_template_variables(given) == {key: value for key, value in given.items() if value is not None}
    assert read_template_variables(None) == read_template_variables({}) == read_template_variables({"a": None}) == {}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([1], "'chat_template_kwargs': expected an object"),
        ({"a": [1]}, "'chat_template_kwargs.a': expected text, a number, true or false"),
        ({"a": {}}, "'chat_template_kwargs.a'"),
        ({"a": float("nan")}, "'chat_template_kwargs.a'"),
        ({"a b": 1}, "'a b' is not the name of a variable"),
        ({"chat_template": "{{ x }}"}, "'chat_template' is not the name of a variable"),
    ],
)
def test_others_are_refused(value, complaint):
    with pytest.raises(DataError, match=complaint):
        read_template_variables(value)


def test_a_row_sets_no_argument_of_transformers():
    parameters = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"kwargs"}
    assert parameters <= RESERVED
