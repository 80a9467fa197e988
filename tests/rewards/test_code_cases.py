from __future__ import annotations

import json

import pytest

from agentrl.errors import RewardError
from agentrl.rewards.builtin.code_cases import Case, code_of, read_cases


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```py\na\n``` better:\n```python3\nb\n``` with output\n```\n7\n```", "b\n"),
        ("```\na\n``` and\n```cpp\nb\n```", "b\n"),
        ("so ```python\ncut off", "cut off"),
        ("no code, `x = 1` apart", None),
        ("", None),
        ("`" * 100_000, None),
    ],
)
def test_code_is_found_in_answers(text, code):
    assert code_of(text) == code


STDIN = [Case("stdin", "1", "2"), Case("stdin", "3\n4", "7")]


@pytest.mark.parametrize(
    ("truth", "cases"),
    [
        ({"inputs": ["1", "3\n4"], "outputs": ["2", "7"]}, STDIN),
        ({"inputs": ["1", ["3", "4"]], "outputs": [2, ["7"]], "fn_name": None}, STDIN),
        ([{"input": "1", "output": "2"}, {"input": "3\n4", "output": "7", "testtype": "stdin"}], STDIN),
        ({"inputs": [[1, [2]]], "outputs": [[3]], "fn_name": "f"}, [Case("call", "[1, [2]]", [3], "f")]),
        ({"inputs": ['1\n"a"'], "outputs": ["3"], "fn_name": "f"}, [Case("call", '[1, "a"]', "3", "f")]),
        ({"assert_case": ["assert f()"]}, [Case("assert", "assert f()")]),
        (["assert f()", "assert g()"], [Case("assert", "assert f()"), Case("assert", "assert g()")]),
        ("def check(f):\n    assert f()\ncheck(f)", [Case("assert", "def check(f):\n    assert f()\ncheck(f)")]),
    ],
)
def test_each_form_of_code_test_is_read(truth, cases):
    assert read_cases(truth) == cases
    assert read_cases(json.dumps(truth)) == cases


@pytest.mark.parametrize(
    ("truth", "told"),
    [
        (None, "an unknown form"),
        (7, "an unknown form"),
        ({}, "expected lists 'inputs' and 'outputs'"),
        ({"inputs": ["1"], "outputs": []}, "there are 1 inputs and 0 outputs"),
        ({"inputs": ["1"]}, "got inputs"),
        ([{"in": 1}], "must be a text or have 'input' and 'output'"),
        ([], "no test"),
        (" ", "no test"),
    ],
)
def test_malformed_test_cases(truth, told):
    with pytest.raises(RewardError, match=told):
        read_cases(truth)


@pytest.mark.parametrize(
    ("printed", "expected", "passed"),
    [
        ("1\n2\n", "1\n2", True),
        ("1  \n2\n\n", "1\n2", True),
        ("1\n2", "1\n2\n", True),
        ("1\n\n2", "1\n2", False),
        (" 1", "1", False),
        ("1\n2\n3", "1\n2", False),
        ("", "", True),
    ],
)
def test_cases_that_compare_output(printed, expected, passed):
    assert Case("stdin", "", expected).passed(printed, "mark") is passed


@pytest.mark.parametrize(
    ("result", "expected", "passed"),
    [
        ("3", 3, True),
        ("3", "3", True),
        ("3", [3], True),
        ("[1, 2]", "[1,2]", True),
        ("[1, 2]", [[1, 2]], True),
        ("0.30000000000000004", 0.3, True),
        ("[0.1, 2]", [0.1, 2.1], False),
        ('"a"', "a", True),
        ("true", "true", True),
        ("null", None, True),
        ("3", 4, False),
        ("[3]", 3, False),
        ("[" * 100_000, [1], False),
        ("[" * 900 + "]" * 900, [1], False),
        ("1" + "0" * 400, 0.5, False),
    ],
)
def test_cases_that_compare_return_values(result, expected, passed):
    case = Case("call", "[]", expected, "f")
    assert case.passed(f"noise\n\nmark{result}\nat exit", "mark") is passed
    assert case.passed(result, "mark") is False
