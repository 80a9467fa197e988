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
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from agentrl.backends.fsdp.ranks import Ranks
from agentrl.errors import ConfigError, Kind
from agentrl.models import loading
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
        hub._ask = lambda kind, name: None
        loading.check_hub = not_asked


def not_asked(name: str, key: str) -> None:
    raise AssertionError(f"the hub was asked for '{name}' after the download")


def restore_hub(ranks: Ranks, *before: object) -> None:
    constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = before
    os.environ.pop("LOCAL_RANK", None)
    hub.check_hub, hub.snapshot_download, hub._ask = ORIGINAL
    loading.check_hub = hub.check_hub


ORIGINAL = (hub.check_hub, hub.snapshot_download, hub._ask)


@pytest.fixture
def model(tmp_path) -> Path:
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "?": 1}, "?")), unk_token="?")
    words.chat_template = "{{ messages }}"  # in a file of its own
    words.save_pretrained(tmp_path / "model")
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
    assert (cache / "saved/chat_template.jinja").read_text() == "{{ messages }}"


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


def refuse_here(ranks: Ranks, name: str) -> None:
    """On the last rank, let `name` of the module of `Source` refuse the model."""
    from agentrl.backends.megatron.weights import source

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError.at("model.path", Kind.NOT_FOUND, f"model.path: no {name} on one node")

    if ranks.rank == ranks.size - 1:
        REPLACED[name] = getattr(source, name)
        setattr(source, name, refuse)


def refuse_nowhere(_: Ranks) -> None:
    from agentrl.backends.megatron.weights import source

    for name, function in REPLACED.items():
        setattr(source, name, function)
    REPLACED.clear()


REPLACED: dict[str, object] = {}


@pytest.mark.parametrize("name", ["adapter_of", "check_folder", "load_tokenizer", "weights_of"])
def test_a_model_that_one_process_refuses_is_refused_by_all(ranks, start, model, name):
    ranks.each(refuse_here, [(name,)] * ranks.size)
    try:
        with pytest.raises(ConfigError, match=f"^model.path: no {name} on one node"):
            start(make_request(model, LAYOUT))
    finally:
        ranks.each(refuse_nowhere, [()] * ranks.size)
    start(make_request(model, LAYOUT))  # the ranks go on


def enter(_: Ranks, folder: Path) -> None:
    os.chdir(folder)


def be_first_of_node(_: Ranks) -> None:
    os.environ["LOCAL_RANK"] = "0"


@pytest.mark.skipif(NUM_RANKS == 1, reason="needs a second node")
def test_a_folder_that_only_one_node_has_is_refused_on_all_processes(ranks, start, model, cache, tmp_path):
    start_hub(ranks, cache, "")
    ranks.each(be_first_of_node, [()] * ranks.size)
    before = Path.cwd()
    (tmp_path / "someone").mkdir()
    model.rename(tmp_path / NAME)
    ranks.each(enter, [(tmp_path,), *[(cache,)] * (ranks.size - 1)])
    try:
        with pytest.raises(ConfigError, match=rf"^model\.path: there is no folder '{NAME}'"):
            start(make_request(Path(NAME), LAYOUT))
    finally:
        ranks.each(enter, [(before,)] * ranks.size)
    start(make_request(tmp_path / NAME, LAYOUT))  # the ranks go on
