"""Invalid arguments to the Python API."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

import agentrl
from agentrl.errors import AgentRLError
from agentrl.tools import BaseTool

ROWS = [{"prompt": f"What is {a}+{a}?", "ground_truth": str(2 * a), "data_source": "doubles"} for a in range(4)]
SHORT = {"data.max_prompt_length": 64, "data.max_response_length": 8}


def score(solution_str):
    return 1.0


def search(query: str) -> str:
    """Looks things up."""
    return query


@pytest.fixture
def said(tmp_path, model):
    """The one-line error for unusable arguments."""

    def refused(data=ROWS, function=agentrl.train, model=model, reward=score, **arguments) -> str:
        own = {"trainer.default_local_dir": str(tmp_path / "run"), "rollout.n": 2, **SHORT}
        arguments.setdefault("settings", own)
        with pytest.raises(AgentRLError) as raised:
            function(model, data, reward=reward, **arguments)
        (line,) = str(raised.value).splitlines()
        return line

    return refused


def frame() -> object:
    """A minimal stand-in for a data frame: iterating over it yields its column names."""
    return type("DataFrame", (dict,), {"iloc": None})(prompt=["a"])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ([], "data is empty: expected files or rows"),
        (iter(()), "data is empty: expected files or rows"),
        (ROWS[0], "data must be files or a list of rows (dicts), not a dict"),
        (None, "data must be files or a list of rows (dicts), not a NoneType"),
        (frame(), "not a DataFrame: pass its .to_dict('records')"),
        ([ROWS[0], 3], "data[1] must be a file's name or a row (a dict), not 3"),
        ([*ROWS, "file.jsonl"], "data must be files or rows, not both"),
        ([ROWS[0], {"prompt": {1}}], "data[1]: not JSON: Object of type set is not JSON serializable"),
        ([{"promt": "a"}], "did you mean 'promt'?"),
        (["nowhere.jsonl"], "nowhere.jsonl: no such file"),
    ],
)
@pytest.mark.parametrize("function", [agentrl.train, agentrl.evaluate, agentrl.rollout])
def test_bad_data_objects_are_refused(said, data, complaint, function):
    assert complaint in said(data, function)


def test_rows_may_come_from_a_generator(model, tmp_path):
    groups = agentrl.rollout(model, (row for row in ROWS[:2]), reward=score, settings=SHORT)
    assert [group.task.ground_truth for group in groups] == ["0", "2"]


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ("search", "tools must be a list of functions or tools, not 'search'"),
        (search, "tools must be a list of functions or tools, not <function search"),
        (["search"], "tools[0] must be a typed function or a tool, not 'search'"),
        ([search, BaseTool], "tools[1] must be a typed function or a tool, not <class"),
        ([lambda query: query], "tools[0]: tool function '<lambda>': parameter 'query' needs a type"),
        ([max], "tools[0]: tool function 'max'"),
        ([search, search], "two tools have the name 'search'"),
    ],
)
def test_bad_tool_objects_are_refused(said, tools, complaint):
    assert complaint in said(tools=tools)


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        ("gsm8q", "unknown reward 'gsm8q'"),
        ([], "reward must be a function or a list of functions, not []"),
        (3, "reward must be a function or a list of functions, not 3"),
        ([score, 3], "reward must be a function or a list of functions"),
        ([score, score], "each of several rewards must accept (prompts, completions, **columns)"),
        (
            [lambda completions: [1], lambda completions: [2]],
            "reward functions must have different names, got <lambda>, <lambda>",
        ),
        (lambda text, answer: 1.0, "reward '<lambda>' needs 'text', but gets only data_source, solution_str"),
        (max, "reward 'max' has no readable signature"),
        (lambda completions: 1.0, "expected a list of one number for one completion, got 1.0"),
        (SimpleNamespace(), "reward must be a function"),
        (lambda **given: math.nan, "reward '<lambda>' (data source 'doubles', row "),
    ],
)
def test_bad_reward_objects_are_refused(said, reward, complaint):
    assert complaint in said(reward=reward, function=agentrl.rollout)


def test_an_object_that_can_be_called_is_a_reward(model):
    class Length:
        def __call__(self, solution_str):
            return float(len(solution_str))

    (group,) = agentrl.rollout(model, ROWS[:1], reward=Length(), settings=SHORT)
    assert group.rollouts[0].reward > 0


def test_invalid_models_and_settings_are_refused(said):
    assert "model: expected a folder or a hub name, not a SimpleNamespace" in said(model=SimpleNamespace())
    assert "settings must be a dict such as {'rollout.n': 8}, not ['rollout.n=2']" in said(settings=["rollout.n=2"])
    assert "settings must be a dict" in said(settings={3: 4}, function=agentrl.rollout)
    assert "unknown key 'rollout.nn': did you mean 'rollout.n'?" in said(settings={"rollout.nn": 1})
    assert "'rollout.n': input should be greater than 0, got 0" in said(function=agentrl.rollout, n=0)
    assert "'trainer.test_freq' has no effect without 'data.val_files'" in said(
        settings={"rollout.n": 2, "trainer.test_freq": 1}
    )
