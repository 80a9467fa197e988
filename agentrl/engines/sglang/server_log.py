"""Why a server ended, from what it wrote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.launch_command import CPU_ENVIRONMENT
from agentrl.errors import AgentRLError, ConfigError, suggestion

TAIL_BYTES = 200_000
RAISED = re.compile(r"^(?:\[[^\]]*\] )*((?:\w+\.)*\w*(?:Error|Exception)\b:? .*)")
WRONG_ARGUMENT = re.compile(r"^\S.*: error: (.*)")
UNKNOWN = re.compile(r"unrecognized arguments: --([\w-]+)")


def why_it_ended(url: str, status: int | None, log_file: Path, start: int) -> AgentRLError:
    """The error to raise for a server that ended with `status` while it was waited for.

    Args:
        start: where in the log its output begins, in bytes.
    """
    lines = _tail(log_file, start)
    if wrong := _last(WRONG_ARGUMENT, lines):
        return ConfigError(f"rollout.sglang.server_args: {_with_suggestion(wrong)}")
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
    """SGLang says which option it does not know; here also which it may have been."""
    if not (unknown := UNKNOWN.match(wrong)):
        return wrong
    name = unknown[1].replace("-", "_")
    return f"sglang has no option '{name}'; {suggestion(name, known_options())}"


def known_options() -> list[str]:
    """Names of all options of this SGLang, in snake case. Takes some seconds, as its help does."""
    command = [sys.executable, "-m", "sglang.launch_server", "--help"]
    environment = {**os.environ, **CPU_ENVIRONMENT}
    text = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    return sorted({name.replace("-", "_") for name in re.findall(r"--([a-z][\w-]+)", text)})
