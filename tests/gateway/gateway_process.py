"""Test helpers: `agentrl gateway` as a process, and a plain client."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warm_agentrl import agentrl


@contextmanager
def started(folder: Path, *words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The process of a gateway, and the variables that it prints."""
    command = [*agentrl(), "gateway", *words]
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        variables: dict[str, str] = {}
        for line in process.stdout:
            if line.startswith("export "):
                variables |= dict(re.findall(r"(\w+)=(\S+)", line))
            if "AGENTRL_ADMIN_KEY" in variables:
                break
        try:
            yield process, variables
        finally:
            process.kill()


def ask(url: str, body: object, key: str) -> dict[str, Any]:
    """Return the answer to a request of a plain client. Any: JSON."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def chat(variables: Mapping[str, str], text: str, key: str | None = None) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return ask(f"{variables['OPENAI_BASE_URL']}/chat/completions", body, key or variables["OPENAI_API_KEY"])
