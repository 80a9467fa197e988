"""Test helpers: a gateway that records, with scripted answers, and a plain HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from agentrl.cli.gateway.command import for_recording
from agentrl.config import RunConfig
from agentrl.config.validate import validate_config
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.trainer.builders.recording import Keys, Recording, open_recording
from agentrl.trainer.builders.records import keep_config
from agentrl.trainer.choices import resolved

SHARED, ADMIN = "the-key-of-all-clients", "the-key-of-the-admin"
SCRIPT = """
def reply(context):
    return f"answer {len(context)}"
"""
QUESTION = [{"role": "user", "content": "What is 2+3?"}]


@dataclass
class Served:
    """A gateway and a client. `Any`: JSON."""

    recording: Recording
    http: ClientSession

    async def send(self, method: str, path: str, body: object = None, key: str = ADMIN, **headers: str) -> Any:
        """Return (status, body) of a request."""
        sent = {"data": BytesIO(body)} if isinstance(body, bytes) else {} if body is None else {"json": body}
        headers = {"Authorization": f"Bearer {key}", **headers}
        async with self.http.request(method, self.recording.server.local_url + path, headers=headers, **sent) as answer:
            return answer.status, await answer.json()

    async def chat(self, messages: Sequence[Mapping[str, Any]], key: str = SHARED, **fields: object) -> dict[str, Any]:
        """Return the model's message."""
        body = {"model": "m", "messages": messages, **fields}
        status, answer = await self.send("POST", "/v1/chat/completions", body, key)
        assert status == 200, answer
        return answer["choices"][0]["message"]

    async def open(self, **fields: object) -> list[str]:
        """Open a group; return its keys."""
        status, answer = await self.send("POST", "/rollouts", fields)
        assert status == 201, answer
        return [each["key"] for each in answer["rollouts"]]

    async def end(self, key: str, **fields: object) -> dict[str, Any]:
        status, answer = await self.send("POST", f"/rollouts/{key}/end", fields)
        assert status == 200, answer
        return answer


def _config(task_folder: Path, run: Path, script: str, sections: Mapping[str, Any]) -> RunConfig:
    run.mkdir(parents=True, exist_ok=True)
    file = run.parent / "script.py"
    file.write_text(script)
    values = {
        "model": {"path": f"{task_folder}/model"},
        "data": {"max_prompt_length": 300, "max_response_length": 300, **sections.get("data", {})},
        "rollout": {"engine": "scripted", "script_path": f"{file}:reply", **sections.get("rollout", {})},
        "trainer": {"default_local_dir": run, **sections.get("trainer", {})},
    }
    return resolved(for_recording(validate_config(values)), "rollout")


@asynccontextmanager
async def served(task_folder: Path, run: Path, *, script: str = SCRIPT, **sections: Any) -> AsyncIterator[Served]:
    """Serve the calculator's tiny model with scripted answers, as `agentrl gateway` does."""
    config = _config(task_folder, run, script, sections)
    keys = Keys(SHARED if config.group_size == 1 else "", ADMIN)
    async with open_recording(config, "127.0.0.1", 0, keys) as recording, ClientSession() as http:
        keep_config(config)
        yield Served(recording, http)


def saved(run: Path) -> list[StoredRollout]:
    return list(TrajectoryStore(run / "trajectories/train").scan())
