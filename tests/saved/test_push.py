"""Uploads of a model and its card through huggingface_hub, to a local server that stores the uploaded files."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import yaml

import agentrl
from agentrl.cli.main import main
from agentrl.errors import ConfigError
from agentrl.saved.push import prepare_upload, push

SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture
def run(tmp_path) -> agentrl.Run:
    folder = tmp_path / "run"
    checkpoint = folder / "checkpoints/step-20"
    (checkpoint / "trainer_state").mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights of step 20")
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "run_state.json").write_text("{}")
    (checkpoint / "trainer_state/state.pt").write_bytes(b"optimizer")
    (folder / "checkpoints/step-3").mkdir()
    (folder / "checkpoints/latest").symlink_to("step-20")
    config = {
        "model": {"path": "/home/someone/models/tiny"},
        "algorithm": {"name": "grpo"},
        "reward": {"judge": {"api_key": SECRET}},
        "trainer": {"experiment_name": "doubles"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [{"step": 10, "val/reward/mean": 0.25}, {"step": 20, "val/reward/mean": 0.75, "val/x|y": 1}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return agentrl.load(folder)


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's HTTP interface that uploads of small files need."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Authorization"]))
        if self.path == "/api/repos/create":
            self.server.repo = json.loads(body)
            self.answer({"url": f"{self.server.address}/o/m"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            self.answer({"files": files})
        else:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            address = self.server.address
            self.answer({"commitUrl": f"{address}/o/m/commit/1", "commitOid": "1", "pullRequestUrl": None})

    def do_GET(self) -> None:
        self.answer({"id": "o/m", "siblings": [], "sha": "0", "private": False, "tags": []})

    def answer(self, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def hub(monkeypatch) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.asked, server.repo = {}, [], {}
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_weights_and_card_are_uploaded_and_state_and_secrets_are_not(run, hub):
    push(prepare_upload(run, "o/m"), private=True)
    assert (hub.repo["organization"], hub.repo["name"]) == ("o", "m")
    # which field depends on the library version
    assert hub.repo.get("visibility", hub.repo.get("private")) in ("private", True)
    assert {name: hub.files[name] for name in hub.files if name != "README.md"} == {
        "model.safetensors": b"weights of step 20",
        "config.json": b"{}",
    }
    card = hub.files["README.md"].decode()
    assert "# doubles" in card
    assert "| `val/reward/mean` | 0.75 |" in card
    assert "algorithm `grpo`, 20 steps" in card
    assert SECRET not in card
    assert "/home/someone" not in card
    assert all(token == f"Bearer {SECRET}" for _, token in hub.asked)


def test_dry_run_shows_the_upload_without_network_access(run, hub, capsys):
    assert main(["push", str(run.path), "o/m", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("o/m: 3 files, ")
    assert "step-20/model.safetensors" in shown
    assert "# doubles" in shown
    assert hub.asked == []


def test_unusable_uploads_are_reported(run, tmp_path):
    with pytest.raises(ConfigError, match=r"step-3' contains no weights"):
        prepare_upload(run, "o/m", 3)
    with pytest.raises(ConfigError, match="no checkpoint of step 4; steps with one: 3, 20"):
        prepare_upload(run, "o/m", 4)
    (tmp_path / "private").write_text("secret")
    weights = run.path / "checkpoints/step-20/model.safetensors"
    weights.unlink()
    weights.symlink_to(tmp_path / "private")
    with pytest.raises(ConfigError, match="is a link"):
        prepare_upload(run, "o/m")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no checkpoint"):
        prepare_upload(agentrl.Run(tmp_path / "empty"), "o/m")


def test_name_refused_by_the_hub_is_a_one_line_error(run, hub):
    with pytest.raises(ConfigError, match="cannot upload to 'not a name': HFValidationError"):
        push(prepare_upload(run, "not a name"))
