"""Files with the settings of harnesses: those that come with agentrl, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.harness.settings import harness_names, read_harness


def problems(folder: Path, text: str) -> list[str]:
    """What is wrong with a file, without its name."""
    file = folder / "own.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_harness(str(file))
    lines = [problem.text for problem in raised.value.problems]
    assert all(line.startswith(f"`rollout.harness`: {file}: ") for line in lines)
    assert {problem.key for problem in raised.value.problems} == {"rollout.harness"}
    return [line.removeprefix(f"`rollout.harness`: {file}: ") for line in lines]


@pytest.mark.parametrize("name", harness_names())
def test_the_files_that_come_with_agentrl_are_valid(name):
    found = read_harness(name)
    assert found.name == name
    assert found.settings.dialect is not None
    assert any("{base_url}" in text or "{root_url}" in text or "BASE_URL" in text for text in found.settings.texts())
    for text in found.settings.files.values():
        if text.lstrip().startswith("{"):
            json.loads(text)


def test_all_mistakes_of_a_file_are_listed_with_the_nearest_name(tmp_path):
    assert problems(tmp_path, "comand: [x]\ndeadline_s: -1\nnetwork: gatewy\nmax_running: 0\n") == [
        "'deadline_s': Input should be greater than 0",
        "'network': Input should be 'host' or 'gateway'",
        "'max_running': Input should be greater than 0",
        "unknown key 'comand': did you mean 'command'?",
    ]
    text = "command: [x, '{instrucion}']\nenv: {A: '{kye}', B: '{{any}}', C: '{row.any}'}\nfiles: {../a: b, /c: d}\n"
    lines = problems(tmp_path, text)
    assert "'command': unknown placeholder '{instrucion}': did you mean 'instruction'?" in lines
    assert any(line.startswith("'env.A': unknown placeholder '{kye}'") for line in lines)
    assert [line for line in lines if line.startswith("'files'")] == [
        "'files': '../a' must be a path in HOME",
        "'files': '/c' must be a path in HOME",
    ]
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on_exit: fail", "expected either 'command' or 'function'"),
        ("command: [x]\nfunction: a.py:run", "expected either 'command' or 'function'"),
        ("function: a.py:run\nfiles: {a: b}", "'files' has no effect with 'function'"),
        ("function: a.py:run\nenv: {A: b}", "'env' has no effect with 'function' in the process of the run"),
        ("command: [x]\npython: python3", "'python' has no effect without 'function'"),
        ("function: a.py:run\npython: python3\nenv: {A: '{key}'}", "'env.A': no placeholders with 'python'"),
        ("command: [x]\nsandbox: locl", "'sandbox': unknown sandbox 'locl': did you mean 'local'?"),
        ("command: [x]\nsandbox: {kind: local, memry_mb: 3}", "'sandbox.memry_mb': Extra inputs are not permitted"),
        ("command: [x]\nsandbox: e2b", "'sandbox': a harness runs in a sandbox of kind 'local' or 'task'"),
        ("command: [x]\nsandbox: local\ndisk_mb: 5", "'disk_mb' has no effect with 'sandbox'"),
        ("command: [x]\nsandbox: local\nnetwork: gateway", "'network' has no effect with 'sandbox'"),
        ("- command", "expected keys such as 'command'"),
        ("command: [", "while parsing"),
    ],
)
def test_a_mistake_is_named(tmp_path, text, expected):
    assert any(line.startswith(expected) for line in problems(tmp_path, text))


def test_a_name_or_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ConfigError, match="unknown harness 'codx': did you mean 'codex'\\?, or name a YAML file"):
        read_harness("codx")
    with pytest.raises(ConfigError, match="there is no file"):
        read_harness(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def run(task, endpoint): ...", "must be a coroutine function"),
        ("async def ran(task, endpoint): ...", "has no 'run': did you mean 'ran'\\?"),
    ],
)
def test_a_function_is_checked_before_the_run(tmp_path, text, expected):
    from agentrl.errors import AgentRLError
    from agentrl.harness.function import load_function

    (tmp_path / "harness_of_user.py").write_text(text)
    file = tmp_path / "own.yaml"
    file.write_text(f"function: {tmp_path}/harness_of_user.py:run")
    with pytest.raises(AgentRLError, match=expected):
        load_function(read_harness(str(file)))
