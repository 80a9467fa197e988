"""A run with tools of an MCP server: what it stores passes the audit, and its replay starts no server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentrl.audit.auditor import Auditor
from agentrl.cli.main import main
from agentrl.store import TrajectoryStore

FOLDERS = [Path(__file__).parents[1] / name for name in ("audit", "tools/mcp")]
SCRIPT = """
from collections import Counter
from zlib import crc32
SEEN = Counter()

def call(name, **arguments):
    import json
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"

REPLIES = [call("echo", a="b"), call("fails"), call("count"), call("die"), call("silent"), "The answer is 3"]

def reply(context):
    SEEN[context] += 1
    return REPLIES[(crc32(context.encode()) + SEEN[context]) % len(REPLIES)]
"""


@pytest.mark.slow
def test_a_run_with_a_server_is_audited_and_replayed(task_folder, tmp_path, monkeypatch, capsys):
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    from audited_runs import make_run
    from raw_server import __file__ as server

    monkeypatch.setenv("MCP_TEST_TOKEN", "SECRET-OF-THE-SERVER")
    started = tmp_path / "started"
    command = (
        f"import pathlib, runpy; pathlib.Path({str(started)!r}).touch(); runpy.run_path({server!r}, {{}}, '__main__')"
    )
    entry = {"command": sys.executable, "args": ["-c", command], "env": {"TOKEN": "${MCP_TEST_TOKEN}"}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"raw": entry}}))
    names = ["echo", "fails", "count", "die", "silent"]
    tools = {"tools": [{"mcp": "servers.json", "tools": names, "timeout_s": 0.5, "max_sessions": 2}]}
    (tmp_path / "tools.yaml").write_text(json.dumps(tools))
    (tmp_path / "mcp_script.py").write_text(SCRIPT)
    script = f"rollout.script_path={tmp_path}/mcp_script.py:reply"
    run = make_run(
        tmp_path,
        task_folder,
        *("rollout.multi_turn.function_tool_path=null", f"rollout.multi_turn.tool_config_path={tmp_path}/tools.yaml"),
        *(script, "data.max_prompt_length=600", "data.val_files=[]"),
    )
    groups = [group for step in (1, 2) for group in TrajectoryStore(run / "trajectories/train").groups(step)]
    outcomes = {call.outcome for group in groups for rollout in group.rollouts for call in rollout.tool_calls}
    assert {"ok", "tool_error", "timeout", "infra_error"} <= outcomes
    ledger = Auditor(folder=run).audit(sorted((run / "trajectories").rglob("*.parquet")))
    assert {name for name, finding in ledger.findings.items() if finding.num_problems} == set()
    texts = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    assert not [text for text in texts if b"SECRET-OF-THE-SERVER" in text]

    started.unlink()
    capsys.readouterr()
    code = ["rollout.engine=scripted", script, f"reward.custom_reward_function.path={tmp_path}/reward.py"]
    assert main(["replay", f"{run}@1", "tools", *code, "--unrecorded", "stub", "--json", "-"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["values"]["num_recorded_calls"] > 0
    assert not started.exists()
