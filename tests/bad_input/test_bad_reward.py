"""Rewards that fail, return no number, hang, or cannot be loaded."""

from __future__ import annotations

import pytest

WHERE = "reward 'compute_score' (data source 'doubles', row "
NO_NUMBER = "expected a finite number or a dict with a 'score', got "


@pytest.mark.slow
@pytest.mark.one_in(10)
@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return {}['missing']", "raised KeyError: 'missing' ({file}:3)"),
        ("return json.loads('[')", "(char 1) ({file}:3)"),  # the user's line, not the library's
        ("raise ValueError('one\\ntwo')", "raised ValueError: one two ({file}:3)"),
        ("return float('nan')", f"{NO_NUMBER}nan ({{file}}:2)"),
        ("pass", f"{NO_NUMBER}None ({{file}}:2)"),
        ("return '1.0'", f"{NO_NUMBER}'1.0' ({{file}}:2)"),
        ("return [1.0, 0.5]", f"{NO_NUMBER}[1.0, 0.5] ({{file}}:2)"),
        ("return {'score': float('inf')}", f"{NO_NUMBER}inf ({{file}}:2)"),
        ("return {'accuracy': 1.0}", "the returned dict has no 'score', only accuracy ({file}:2)"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_reward_errors_end_the_run(bad, kind, body, complaint):
    file = bad.write("reward.py", f"import json\n{kind} compute_score(solution_str):\n    {body}\n")
    line = bad.refused()
    assert line.startswith(WHERE)
    assert complaint.format(file=file) in line


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_reward_that_exits_the_process_ends_the_run_with_one_line(bad, kind):
    file = bad.write("reward.py", f"import sys\n{kind} compute_score(solution_str):\n    sys.exit(3)\n")
    assert f"SystemExit: 3 ({file}:3)" in bad.refused()


@pytest.mark.slow
def test_reward_that_sometimes_hangs_fails_only_those_rollouts(bad):
    bad.write(
        "reward.py",
        """
        import time
        calls = []
        def compute_score(solution_str):
            calls.append(0)
            if len(calls) == 1:
                time.sleep(2)
            return len(calls) % 2
        """,
    )
    assert bad.goes_on("reward.timeout_s=0.1")["rollouts/infra_failed"] == 1 / 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "sleep", ["def compute_score(x=0):\n    time.sleep(2)", "async def compute_score(x=0):\n    await asyncio.sleep(2)"]
)
def test_reward_that_always_hangs_ends_the_run(bad, sleep):
    file = bad.write("reward.py", f"import asyncio, time\n{sleep}\n")
    line = bad.refused("reward.timeout_s=0.1")
    assert "all 8 rollouts failed" in line
    assert "took longer than 0.1 seconds" in line
    assert f"({file}:2)" in line


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "x = 1\ndef compute_score(solution_str)\n    return 1\n",
            "cannot import '{file}': SyntaxError: expected ':' ({file}:2)",
        ),
        (
            "x = 1\nimport nothing_like_this\n",
            "cannot import '{file}': ModuleNotFoundError: No module named 'nothing_like_this' ({file}:2)",
        ),
        ("1 / 0\n", "cannot import '{file}': ZeroDivisionError: division by zero ({file}:1)"),
        ("import sys\nsys.exit(0)\n", "cannot import '{file}': SystemExit: 0 ({file}:2)"),
        ("def compute_scores(): pass\n", "'{file}' has no 'compute_score': did you mean 'compute_scores'?"),
        ("", "'{file}' has no 'compute_score': there are none"),
        ("compute_score = 3\n", "'compute_score' of '{file}' is not a function"),
        ("def compute_score(answer, text): pass\n", "needs 'answer', but gets only data_source, solution_str"),
        ("def compute_score(solution_str, /): pass\n", "needs 'solution_str', but gets only"),
        ("from builtins import max as compute_score\n", "'compute_score' has no readable signature"),
    ],
)
def test_unusable_file_is_refused(bad, text, complaint):
    file = bad.write("reward.py", text)
    assert complaint.format(file=file) in bad.refused()


def test_missing_reward_file_or_function_is_refused(bad):
    assert "there is no file" in bad.refused(f"reward.custom_reward_function.path={bad.folder}/rewrd.py")
    assert "expected a file, " in bad.refused(f"reward.custom_reward_function.path={bad.folder}")
    line = bad.refused("reward.custom_reward_function.reward_kwargs={solution_sr: 1}")
    assert "does not accept reward_kwargs.solution_sr: did you mean 'solution_str'?" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact_match", "gsm8k"])
def test_row_without_its_ground_truth_is_refused(bad, name):
    bad.rows([{"prompt": "2+2?", "ground_truht": "4"}] * 4)
    line = bad.refused("reward.custom_reward_function.path=null", f"reward.name={name}")
    assert line.startswith(f"reward '{name}' (data source 'unknown', row ")
    assert "no ground truth (column 'ground_truth', 'answer'" in line


def test_unknown_built_in_reward_is_refused(bad):
    line = bad.refused("reward.custom_reward_function.path=null", "reward.name=gsm9k")
    assert line == "'reward.name': unknown reward 'gsm9k': did you mean 'gsm8k'?"
    assert "there is no built-in reward for data_source 'doubles'" in bad.refused(
        "reward.custom_reward_function.path=null"
    )
