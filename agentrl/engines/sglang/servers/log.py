"""Find in a server's log why the server ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.servers.command import CPU_ENVIRONMENT
from agentrl.errors import AgentRLError, ConfigError, Kind, suggestion

TAIL_BYTES = 200_000
RAISED = re.compile(r"^(?:\[[^\]]*\] )*((?:\w+\.)*\w*(?:Error|Exception)\b:? .*)")
WRONG_ARGUMENT = re.compile(r"^\S.*: error: (.*)")
UNKNOWN = re.compile(r"unrecognized arguments: --([\w-]+)")


def startup_error(url: str, status: int | None, log_file: Path, start: int) -> AgentRLError:
    """Error to raise for a server that ended with `status` before it was ready.

    Args:
        start: byte offset at which the server's output begins in the log.
    """
    lines = _tail(log_file, start)
    if wrong := _last(WRONG_ARGUMENT, lines):
        return ConfigError.at(
            "rollout.sglang.server_args", Kind.WRONG_VALUE, f"rollout.sglang.server_args: {_with_suggestion(wrong)}"
        )
    reason = _last(RAISED, lines) or (lines[-1].strip() if lines else "it wrote nothing")
    return ServerError(f"the SGLang server {url} ended with status {status}: {reason[:400]}; its output: {log_file}")


def _tail(log_file: Path, start: int) -> list[str]:
    with log_file.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(start, size - TAIL_BYTES))
        text = log.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _last(pattern: re.Pattern[str], lines: list[str]) -> str | None:
    matches = [match for line in lines if (match := pattern.match(line))]
    return matches[-1][1].strip() if matches else None


def _with_suggestion(wrong: str) -> str:
    """Add the nearest valid option to SGLang's message about an unknown option."""
    if not (unknown := UNKNOWN.match(wrong)):
        return wrong
    name = unknown[1].replace("-", "_")
    return f"sglang has no option '{name}'; {suggestion(name, known_options())}"


def known_options() -> list[str]:
    """Names of all options of the installed SGLang, in snake case. Runs `--help`, which takes some seconds."""
    command = [sys.executable, "-m", "sglang.launch_server", "--help"]
    environment = {**os.environ, **CPU_ENVIRONMENT}
    text = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    return sorted({name.replace("-", "_") for name in re.findall(r"--([a-z][\w-]+)", text)})
