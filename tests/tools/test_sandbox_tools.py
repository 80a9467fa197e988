from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
import yaml
from e2b_server import KEY, Fault, e2b_server
from tool_builders import call, run_calls, task

from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import ConfigError
from agentrl.sandboxes.e2b.settings import E2BSandbox
from agentrl.tools.loading import tools_of
from agentrl.tools.toolbox import Toolbox
from agentrl.trainer.meters import ToolMeter
from agentrl.types.rollout import Outcome

CONFIGS = Path(__file__).parents[2] / "configs/tool_config"
QUICK = MultiTurnConfig(tool_timeout_s=20.0)


@pytest.fixture
def tools(tmp_path):
    """Load a YAML file of these lines."""
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("bubblewrap is not installed: make bubblewrap")

    def load(*lines: str):
        (tmp_path / "tools.yaml").write_text("tools:\n" + "".join(f"  - {line}\n" for line in lines))
        return [*tools_of(tmp_path / "tools.yaml")]

    return load


ALL = ("name: python", "name: bash", "name: read_file", "name: write_file", "name: edit_file")


@pytest.mark.slow
def test_the_tools_of_a_rollout_share_one_sandbox(tools):
    results, _ = run_calls(
        tools(*ALL),
        call("python", code="x = 6"),
        call("write_file", path="a/b.py", content="print(6 * 7)\n"),
        call("edit_file", path="a/b.py", old_text="7", new_text="x"),
        call("bash", command="cat a/b.py"),
        call("python", code="exec(open('a/b.py').read())"),
        call("read_file", path="a/b.py"),
        multi_turn=QUICK,
    )
    assert [result.outcome for result in results] == [Outcome.OK] * 6
    assert [results[3].text, results[4].text, results[5].text] == ["print(6 * x)", "36", "print(6 * x)\n"]


@pytest.mark.slow
def test_sandboxes_are_counted_once_for_the_tools_that_share_them(tools):
    async def main():
        box = Toolbox(tools(*ALL), QUICK)
        for code in ("1", "import os; os.kill(os.getppid(), 9)"):
            async with box.session(task()) as session:
                await session.call(call("python", code=code))
                await session.call(call("bash", command="true"))
        await box.close()
        return box.metrics()

    metrics = asyncio.run(main())
    assert (metrics["sandboxes_started"], metrics["sandboxes_ended"], metrics["abandoned_calls"]) == (3, 1, 0)
    assert metrics["sandbox_s"] > 0


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("tool", "arguments", "outcome", "text"),
    [
        ("python", {"code": "1 / 0"}, Outcome.TOOL_ERROR, "ZeroDivisionError"),
        ("python", {"code": "import os; os._exit(2)"}, Outcome.TOOL_ERROR, "variables are lost"),
        ("python", {"code": "import os; os.kill(os.getppid(), 9)"}, Outcome.TOOL_ERROR, "files and variables are lost"),
        ("python", {"code": ""}, Outcome.OK, "[no output]"),
        ("python", {}, Outcome.FORMAT_ERROR, "code"),
        ("python", {"code": 3}, Outcome.FORMAT_ERROR, "code"),
        ("bash", {"command": "echo so far; exit 4"}, Outcome.TOOL_ERROR, "Error: so far\n[exit code 4]"),
        ("read_file", {"path": "none"}, Outcome.TOOL_ERROR, "no such file: none"),
        ("edit_file", {"path": "none", "old_text": "a", "new_text": "b"}, Outcome.TOOL_ERROR, "no such file"),
    ],
)
def test_failures_of_the_model_are_typed(tools, tool, arguments, outcome, text):
    results, _ = run_calls(tools(*ALL), call(tool, **arguments), multi_turn=QUICK)
    assert results[0].outcome == outcome
    assert text in results[0].text


@pytest.mark.parametrize(("old", "found"), [("z", 0), ("a", 2), ("", 0)])
def test_a_passage_that_is_not_unique_is_not_replaced(tools, old, found):
    results, _ = run_calls(
        tools(*ALL),
        call("write_file", path="f", content="a b a"),
        call("edit_file", path="f", old_text=old, new_text="c"),
        call("read_file", path="f"),
        multi_turn=QUICK,
    )
    assert results[1].outcome == Outcome.TOOL_ERROR
    assert f"occurs {found} times" in results[1].text
    assert results[2].text == "a b a"


@pytest.mark.slow
def test_code_is_stopped_at_the_timeout_and_its_output_is_kept(tools):
    results, _ = run_calls(
        tools("{name: python, timeout_s: 0.5}"),
        call("python", code="print('before', flush=True)\nwhile True: pass"),
        call("python", code="'next'"),
        multi_turn=QUICK,
    )
    assert results[0].outcome == Outcome.TIMEOUT
    assert results[0].text.startswith("Error: before\n")
    assert "[stopped after 0.5 seconds]" in results[0].text
    assert results[1].text == "'next'"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{name: python, sandbox: locale}", "unknown sandbox 'locale': did you mean 'local'"),
        ("{name: python, sandbox: {kind: local, memory: 3}}", "memory"),
        ("{name: python, sandbox: {kind: local, memory_mb: 0}}", "memory_mb"),
        ("{name: python, sandbox: 3}", "sandbox"),
        ("{name: python, sandbx: local}", "did you mean 'sandbox'"),
        ("{name: python, timeout_s: -1}", "timeout_s"),
    ],
)
def test_mistakes_in_the_file_are_named(tools, line, message):
    with pytest.raises(ConfigError, match=r"tools\[0\]") as caught:
        tools(line)
    assert message in str(caught.value)


def test_the_description_can_be_replaced(tools):
    (tool,) = tools("{name: bash, description: Run a command on the test server.}")
    assert tool.schema.function.description == "Run a command on the test server."
    assert tool.schema.function.parameters["required"] == ["command"]


def test_a_function_of_ones_own_may_have_the_name(tools, tmp_path):
    (tmp_path / "own.py").write_text('def python(code: str) -> str:\n    """Run it."""\n    return "own"\n')
    results, _ = run_calls(tools("{name: python, function: own.py:python}"), call("python", code="1"), multi_turn=QUICK)
    assert results[0].text == "own"


@pytest.fixture
def e2b(tmp_path, monkeypatch):
    """An E2B server that the environment names."""
    with e2b_server(tmp_path / "sandboxes") as server:
        monkeypatch.setenv("E2B_API_KEY", KEY)
        monkeypatch.setenv("E2B_API_URL", server.url)
        monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # of the file that limits starts
        yield server


@pytest.mark.slow
def test_a_file_moves_from_local_to_e2b_by_one_word(tools, e2b):
    local = (CONFIGS / "python.yaml").read_text()
    moved = local.replace("sandbox: local", "sandbox: e2b")
    assert yaml.safe_load(moved) == yaml.safe_load((CONFIGS / "python_e2b.yaml").read_text())
    calls = (
        call("python", code="x = 6\nprint('so far')\nx + 1"),
        call("write_file", path="a/b.py", content="print(6 * 7)\n"),
        call("edit_file", path="a/b.py", old_text="7", new_text="x"),
        call("bash", command="cat a/b.py; exit 4"),
        call("python", code="exec(open('a/b.py').read())"),
        call("read_file", path="none"),
        call("python", code="import os; os._exit(1)"),
    )
    results = [
        run_calls([*tools_of(CONFIGS / name)], *calls, multi_turn=QUICK)[0]
        for name in ("python.yaml", "python_e2b.yaml")
    ]
    shown = [[(result.text, result.outcome) for result in each] for each in results]
    assert shown[0] == shown[1]
    assert shown[0][3] == ("Error: print(6 * x)\n[exit code 4]", Outcome.TOOL_ERROR)
    assert (len(e2b.ended), e2b.machines) == (1, {})


def test_a_service_that_fails_says_nothing_about_the_policy(tools, e2b):
    e2b.fail("create", Fault(500))
    results, _ = run_calls(tools("{name: python, sandbox: e2b}"), call("python", code="1"), multi_turn=QUICK)
    assert results[0].outcome == Outcome.INFRA_ERROR


def test_a_kind_that_cannot_be_used_is_refused_before_the_first_rollout(tools, monkeypatch):
    monkeypatch.delenv("E2B_API_KEY", raising=False)

    async def main():
        box = Toolbox(tools("{name: python, sandbox: e2b}"), QUICK)
        try:
            with pytest.raises(ConfigError, match="set E2B_API_KEY"):
                await box.start()
        finally:
            await box.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_step_counts_its_sandboxes_and_their_cost(tools, e2b):
    async def main():
        box = Toolbox(tools("{name: python, sandbox: {kind: e2b, starts_per_s: null}}", "{name: bash}"), QUICK)
        meter, steps = ToolMeter(box.metrics), []
        for number in (1, 2):
            for _ in range(number):
                async with box.session(task()) as session:
                    await session.call(call("python", code="1"))
                    await session.call(call("bash", command="true"))
            steps.append(meter())
        await box.close()
        return steps

    first, second = asyncio.run(main())
    assert (first["tools/sandboxes_started"], second["tools/sandboxes_started"]) == (2, 4)  # of both kinds
    assert 0 < first["tools/sandbox_cost_usd"] < second["tools/sandbox_cost_usd"]
    assert second["tools/sandbox_cost_usd"] < E2BSandbox().usd_per_s * (
        first["tools/sandbox_s"] + second["tools/sandbox_s"]
    )
