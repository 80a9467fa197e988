"""The YAML files of containers and Sandbox Fusion, loaded and used."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_containers import FakeDaemon
from sandbox_fusion_server import sandbox_fusion
from tool_builders import call, run_calls

from agentrl.config.rollout import MultiTurnConfig
from agentrl.sandboxes.docker.provider import ContainerProvider
from agentrl.tools.loading import tools_of
from agentrl.types.rollout import Outcome

ROOT = Path(__file__).parents[2]
QUICK = MultiTurnConfig(tool_timeout_s=20.0)


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    found = FakeDaemon(tmp_path / "daemon")
    monkeypatch.setenv("PATH", found.path)
    return found


def shipped(name: str, folder: Path, **replaced: str) -> Path:
    """Return the YAML file, which the page shows, with replaced texts."""
    text = (ROOT / "configs" / "tool_config" / name).read_text()
    assert text[text.index("tools:") :] in (ROOT / "docs" / "sandboxes.md").read_text()
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.slow
def test_tools_in_a_container(daemon, tmp_path):
    results, _ = run_calls(
        tools_of(shipped("python_docker.yaml", tmp_path)),
        call("python", code="x = 6; open('f', 'w').write('7')"),
        call("bash", command="cat f"),
        call("python", code="x"),
        call("python", code="import os, signal; os.kill(os.getppid(), signal.SIGKILL)"),
        call("bash", command="ls"),
        multi_turn=QUICK,
    )
    assert [result.text for result in results[:3]] == ["1", "7", "6"]
    assert results[3].outcome == Outcome.TOOL_ERROR
    assert "its files and variables are lost" in results[3].text
    assert (results[4].outcome, results[4].text) == (Outcome.OK, "[no output]")
    assert daemon.containers() == {}


def test_a_daemon_that_fails_in_a_rollout_is_an_infrastructure_failure(daemon, tmp_path, monkeypatch):
    async def passed(self):
        daemon.fault("run", "says docker: Error response from daemon: no space left on device.")

    monkeypatch.setattr(ContainerProvider, "check", passed)
    tools = tools_of(shipped("python_docker.yaml", tmp_path))
    (result,), _ = run_calls(tools, call("python", code="1"), multi_turn=QUICK)
    assert result.outcome == Outcome.INFRA_ERROR
    assert "no space left on device" in result.text


@pytest.mark.slow
def test_tools_on_sandbox_fusion_say_that_variables_are_not_kept(tmp_path):
    with sandbox_fusion() as (url, _):
        path = shipped("sandbox_fusion.yaml", tmp_path, **{"http://localhost:8080": url})
        tools = [*tools_of(path)]
        results, _ = run_calls(
            tools,
            call("write_file", path="a/f", content="7"),
            call("python", code="x = open('a/f').read(); open('g', 'w').write(x); x"),
            call("bash", command="cat a/f g"),
            call("read_file", path="g"),
            call("python", code="x"),
            multi_turn=QUICK,
        )
    assert [result.text for result in results[:4]] == ["wrote 1 bytes to a/f", "'7'", "77", "7"]
    assert (results[4].outcome, "NameError" in results[4].text) == (Outcome.TOOL_ERROR, True)
    python, bash = (tool.schema.function.description for tool in tools[:2])
    assert "Files are kept for the next call, variables are not." in python
    assert "Files of the working folder are kept" in bash
