"""A model or dataset name is looked up on the hub once; every reply or failure of the hub gives a quick answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import datasets
import pytest
from huggingface_hub import constants

from agentrl.config.model import ModelConfig
from agentrl.data.rows.open import open_rows
from agentrl.errors import ConfigError, DataError
from agentrl.models.loading import load_tokenizer
from agentrl.utils import hub as module
from agentrl.utils.hub import check_hub, check_hub_dataset, hub_folder

NOWHERE = "http://127.0.0.1:9"


class Hub(BaseHTTPRequestHandler):
    """A hub without models and datasets."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    check_hub.cache_clear()
    check_hub_dataset.cache_clear()
    return tmp_path


def cached(cache: Path, name: str) -> None:
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "snapshots/abc/config.json").write_text("{}")


def refusal(name: str) -> str:
    start_s = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(ModelConfig(path=name))
    assert time.perf_counter() - start_s < 60
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_model_unknown_to_the_hub_is_named(hub: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    assert refusal("org/nope").startswith(
        "model.path: there is no folder 'org/nope', and no model of that name on the hub"
    )
    assert [path for path in Hub.asked if path.startswith("/api/models/")] == ["/api/models/org/nope"]
    assert "no model of that name on the hub" in refusal("a--b/c.git")  # the hub does not allow such names


def test_unreachable_hub_is_named_with_its_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    line = refusal("org/nope")
    assert line.startswith("model.path: there is no folder 'org/nope', and the hub cannot be reached (")
    assert line.endswith("set HF_HUB_OFFLINE=1")


def test_cached_model_is_used_without_the_hub(own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    cached(own_cache, "org/here")
    check_hub("org/here", "model.path")
    assert "set HF_HUB_OFFLINE=1 to avoid this wait" in caplog.text


def test_offline_only_the_cache_counts(own_cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cached(own_cache, "org/offline")
    check_hub("org/offline", "model.path")
    assert refusal("org/nope").endswith("while HF_HUB_OFFLINE is set")


def dataset_refusal(name: str) -> str:
    start_s = time.perf_counter()
    with pytest.raises(DataError) as caught:
        open_rows(name)
    assert time.perf_counter() - start_s < 60
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_dataset_unknown_to_the_hub_is_named(hub: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    Hub.asked.clear()
    start = "org/nope: there is no file of that name, and no dataset of that name on the hub"
    assert dataset_refusal("org/nope:test").startswith(start)
    assert Hub.asked == ["/api/datasets/org/nope"]


def test_unreachable_dataset_and_hub_are_named(own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    line = dataset_refusal("org/nope")
    assert line.startswith("org/nope: there is no file of that name, and the hub cannot be reached (")
    assert line.endswith("give a file, or fetch the dataset into the hub's cache and set HF_HUB_OFFLINE=1")
    (own_cache / "datasets/org___my_rows").mkdir(parents=True)
    check_hub_dataset("org/MyRows")
    assert "set HF_HUB_OFFLINE=1 to avoid this wait" in caplog.text


def test_offline_only_the_cache_of_datasets_counts(own_cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (own_cache / "datasets--org--here/snapshots/abc").mkdir(parents=True)
    check_hub_dataset("org/here")
    assert dataset_refusal("org/nope").endswith("while HF_HUB_OFFLINE is set")


def test_the_folder_of_a_downloaded_model_is_found_without_the_hub(own_cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    cached(own_cache, "org/here")
    for downloaded in (True, False):  # an older download without weights; nobody knows what the hub has
        with pytest.raises(
            ConfigError, match=r"^ref\.path: the hub's cache here has no safetensors files of 'org/here'"
        ):
            hub_folder("org/here", "ref.path", downloaded=downloaded)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"cache here has no safetensors files .* `hf download org/here`"):
        hub_folder("org/here", "ref.path")
    folder = own_cache / "models--org--here/snapshots/abc"
    (folder / "model.safetensors").touch()
    assert hub_folder("org/here", "ref.path", downloaded=True) == folder


def test_a_model_of_the_hub_without_safetensors_files_is_to_be_converted(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_ask", lambda kind, name: None)  # the hub has it
    monkeypatch.setattr(module, "snapshot_download", lambda *_, **__: own_cache)
    with pytest.raises(ConfigError, match=r"^ref\.path: 'org/there' has no safetensors files on the hub: convert"):
        hub_folder("org/there", "ref.path")


def test_a_model_that_cannot_be_downloaded_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    with pytest.raises(ConfigError, match=r"^ref\.path: there is no folder 'org/nope', and the hub cannot be reached"):
        hub_folder("org/nope", "ref.path")
    with pytest.raises(ConfigError, match=r"^ref\.path: cannot download 'org/nope' from the hub: "):
        hub_folder("org/nope", "ref.path", downloaded=True)
