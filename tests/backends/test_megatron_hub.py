"""A model of the hub: the first process of each node downloads it, and all processes read the hub's cache."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from megatron_models import make_request
from rank_processes import NUM_RANKS
from tiny_models import save_model

from agentrl.backends.fsdp.ranks import Ranks
from agentrl.errors import ConfigError
from agentrl.utils import hub

pytestmark = pytest.mark.megatron

NAME = "someone/tiny"
LAYOUT = {1: "", 2: "pp2", 4: "tp2 pp2"}[NUM_RANKS]


class Hub:
    """Stands in for the hub: a download links the files of a folder into the cache, and records the process."""

    def __init__(self, cache: str, files: str) -> None:
        self.cache, self.files = Path(cache), Path(files)
        self.snapshot = self.cache / "models--someone--tiny/snapshots/abc"

    def download(self, name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        assert name == NAME
        if not local_files_only:
            (self.cache / f"downloaded-{os.getpid()}").touch()
            self.snapshot.mkdir(parents=True, exist_ok=True)
            for file in (file for pattern in allow_patterns for file in self.files.glob(pattern)):
                (self.snapshot / file.name).symlink_to(file)
            (self.snapshot.parents[1] / "refs").mkdir()
            (self.snapshot.parents[1] / "refs/main").write_text("abc")
        assert self.snapshot.is_dir()
        return str(self.snapshot)


def replace_hub(ranks: Ranks, cache: str, files: str) -> None:
    """All ranks are on one node, as with a launcher."""
    constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = cache, True  # what transformers reads is in the cache
    os.environ["LOCAL_RANK"] = str(ranks.rank)
    hub.check_hub.cache_clear()
    if files:
        hub.check_hub, hub.snapshot_download = (lambda name, key: None), Hub(cache, files).download


def restore_hub(ranks: Ranks, *before: object) -> None:
    constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = before
    os.environ.pop("LOCAL_RANK", None)
    hub.check_hub, hub.snapshot_download = ORIGINAL


ORIGINAL = (hub.check_hub, hub.snapshot_download)


@pytest.fixture
def model(tmp_path) -> Path:
    return save_model(tmp_path / "model")


@pytest.fixture
def cache(ranks, tmp_path) -> Iterator[Path]:
    before = (constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE)
    (tmp_path / "cache").mkdir()
    yield tmp_path / "cache"
    ranks.each(restore_hub, [before] * ranks.size)


def start_hub(ranks: Ranks, cache: Path, files: Path | str) -> None:
    ranks.each(replace_hub, [(str(cache), str(files))] * ranks.size)


def test_a_model_of_the_hub_is_downloaded_once_per_node(ranks, start, model, cache):
    folder = start(make_request(model, LAYOUT))
    expected = {name: value.clone() for name, value in folder.weights()}
    start_hub(ranks, cache, model)
    backend = start(make_request(Path(NAME), LAYOUT))
    found = dict(backend.weights())
    assert found.keys() == expected.keys()
    assert all(value.equal(expected[name]) for name, value in found.items())
    assert [file.name for file in cache.glob("downloaded-*")] == [f"downloaded-{os.getpid()}"]
    asyncio.run(backend.save(cache / "saved"))
    assert (cache / "saved/config.json").is_file()


def test_a_model_that_the_hub_lacks_is_refused_on_all_processes(ranks, start, model, cache):
    start_hub(ranks, cache, "")
    with pytest.raises(ConfigError, match=r"model\.path: there is no folder 'someone/tiny', and no model of that name"):
        start(make_request(Path(NAME), LAYOUT))
    start(make_request(model, LAYOUT))  # the ranks go on


def test_a_model_without_safetensors_files_is_refused(ranks, start, model, cache):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    start_hub(ranks, cache, model)
    with pytest.raises(ConfigError, match=r"'someone/tiny' has no safetensors files on the hub"):
        start(make_request(Path(NAME), LAYOUT))
