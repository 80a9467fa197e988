from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from retrieval_server import retrieval_server
from tool_builders import call, run_calls

from agentrl.errors import ConfigError
from agentrl.tools.loading import tools_of
from agentrl.tools.search import index_cache, tool
from agentrl.tools.search.index_cache import IndexSettings, load_index
from agentrl.types.rollout import Outcome

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs/tool_config"
SETTINGS = IndexSettings(200, 1.2, 0.75)


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "owls.md").write_text("# Owls\nOwls fly at night.")
    (folder / "fish.txt").write_text("Fish swim at night. Fish do not fly.")
    return folder


def folders(cache):
    return {path.name for path in cache.iterdir() if path.is_dir()}


def test_the_shipped_configuration_searches_the_folder_of_documents(documents, monkeypatch, capsys):
    monkeypatch.chdir(documents.parent)
    ((result,), _) = run_calls(tools_of(CONFIGS / "search.yaml"), call("search", query_list=["who flies? fly", "x"]))
    listed = "Doc 1 (Title: Owls)\nOwls fly at night.\n\nDoc 2 (Title: fish)\nFish swim at night. Fish do not fly."
    assert json.loads(result.text) == {"result": f"{listed}\n---\nNo search results found."}
    assert (result.outcome, result.metrics) == (Outcome.OK, {"query_count": 2, "total_results": 2})
    assert "search: 2 passages of 'documents'" in capsys.readouterr().out


def test_keys_of_an_entry(documents, tmp_path):
    (tmp_path / "tools.yaml").write_text(
        "tools:\n  - {name: look_up, description: d, documents: documents, top_k: 1, max_chars: 4, passage_words: 2}\n"
    )
    (found,) = tools_of(tmp_path / "tools.yaml")  # beside the file, not in the working folder
    assert (found.schema.function.description, found.name) == ("d", "look_up")
    ((result,), _) = run_calls([found], call("look_up", query_list=["night"]))
    assert json.loads(result.text)["result"] == "Doc 1 (Title: fish)\nat n"


def test_a_service_with_the_same_passages_is_shown_in_the_same_way(documents, tmp_path):
    index = load_index(documents, SETTINGS)

    def find(query, top_k):
        return [index.passage(hit.number) for hit in index.search(query, top_k)]

    def text(entry):
        (tmp_path / "tools.yaml").write_text(f"tools:\n  - {entry}\n")
        queries = ["fly", "unknown", "fish at night"]
        ((result,), _) = run_calls(tools_of(tmp_path / "tools.yaml"), call("search", query_list=queries))
        return result.text

    with retrieval_server(find=find) as (url, _):
        assert text(f"service: {url}") == text("documents: documents")


def test_the_yaml_files_of_the_page_load(documents, tmp_path):
    documents.rename(tmp_path / "corpus")
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/search.md").read_text(), re.DOTALL | re.MULTILINE)
    names = []
    for block in blocks:
        (tmp_path / "tools.yaml").write_text(block)
        names += [each.name for each in tools_of(tmp_path / "tools.yaml")]
    assert names == ["search", "search"]


def test_an_index_search_is_deterministic(documents, tmp_path):
    (tmp_path / "tools.yaml").write_text("tools:\n  - documents: documents\n")
    (found,) = tools_of(tmp_path / "tools.yaml")
    assert found.bound(1.0, None).deterministic


def test_a_second_start_builds_nothing(documents, cache, monkeypatch):
    load_index(documents, SETTINGS)
    monkeypatch.setattr(index_cache, "build_index", None)
    shutil.move(documents, documents.with_name("moved"))
    assert len(load_index(documents.with_name("moved"), SETTINGS)) == 2


def test_changed_documents_or_settings_have_their_own_index(documents, cache):
    load_index(documents, SETTINGS)
    before = (documents / "owls.md").stat()
    (documents / "owls.md").write_text("# Owls\nOwls rest at noon.")
    os.utime(documents / "owls.md", ns=(before.st_atime_ns, before.st_mtime_ns))  # same size, same time
    assert [hit.number for hit in load_index(documents, SETTINGS).search("noon", 3)] == [1]
    (documents / "fish.txt").rename(documents / "whale.txt")
    assert load_index(documents, SETTINGS).passage(1).startswith("whale\n")
    load_index(documents, IndexSettings(2, 1.2, 0.75))
    load_index(documents, IndexSettings(200, 1.2, 0.5))
    assert len(folders(cache)) == 5


@pytest.mark.parametrize("name", ["manifest.json", "texts.bin", "data.csc.index.npy", "vocab.index.json"])
@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}"])
def test_a_damaged_index_is_built_again(documents, cache, name, content):
    load_index(documents, SETTINGS)
    (folder,) = folders(cache)
    (cache / folder / name).unlink()
    if content is not None:
        (cache / folder / name).write_bytes(content)
    assert len(load_index(documents, SETTINGS).search("fly", 3)) == 2


class Harmful:
    def __reduce__(self):
        return print, ("code of a pickle has run",)


@pytest.mark.parametrize("name", ["offsets.npy", "data.csc.index.npy", "indptr.csc.index.npy"])
def test_pickles_in_the_cache_are_not_run(documents, cache, name, capsys):
    load_index(documents, SETTINGS)
    (folder,) = (cache / each for each in folders(cache))
    np.save(folder / name, np.array([Harmful()], dtype=object), allow_pickle=True)
    forged = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps({**forged, name: sha256((folder / name).read_bytes()).hexdigest()})
    )
    assert len(load_index(documents, SETTINGS).search("fly", 3)) == 2
    assert "code of a pickle" not in capsys.readouterr().out
    pickle.loads(pickle.dumps(Harmful()))
    assert "code of a pickle" in capsys.readouterr().out


def test_a_failed_build_leaves_nothing(documents, cache):
    (documents / "owls.md").write_text("?")
    (documents / "fish.txt").rename(documents / "!.txt")
    (documents / "!.txt").write_text("!")
    (documents / "owls.md").rename(documents / "-.md")
    with pytest.raises(ConfigError, match="contain no words"):
        load_index(documents, SETTINGS)
    assert folders(cache) == set()


def test_a_cache_folder_that_cannot_be_written_is_named(documents, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME to a folder for indexes"):
        load_index(documents, SETTINGS)


def test_a_missing_library_names_the_extra(documents, tmp_path, monkeypatch):
    (tmp_path / "tools.yaml").write_text("tools:\n  - documents: documents\n")
    monkeypatch.setattr(tool, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'agentrl-train\[search\]'"):
        [*tools_of(tmp_path / "tools.yaml")]


def test_documents_that_do_not_exist_name_the_entry(tmp_path):
    (tmp_path / "tools.yaml").write_text("tools:\n  - documents: nowhere\n")
    with pytest.raises(ConfigError, match=r"tools.yaml: tools\[0\]: 'nowhere' is not a folder or file"):
        [*tools_of(tmp_path / "tools.yaml")]
