from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.errors import DataError
from agentrl.tools.search.documents import document_files, passages


def read(place, num_words=200):
    return [*passages(document_files(place), num_words)]


@pytest.fixture
def folder(tmp_path):
    """A folder with a document of each kind."""
    place = tmp_path / "documents"
    (place / "b/.hidden").mkdir(parents=True)
    (place / "a.md").write_text("\n## The  heading\nmarkdown", encoding="utf-8-sig")
    (place / "b/no_heading.md").write_text("plain # text")
    (place / "b/c.txt").write_text("text")
    (place / "b/d.jsonl").write_text('{"title": "T", "text": "line"}\n\n{"contents": "\\"C\\"\\n1\\n2", "id": 7}\n')
    (place / "b/e.json").write_text('[{"text": "no title"}]')
    pq.write_table(pa.table({"title": ["P", None], "text": ["parquet", "second"]}), place / "b/f.parquet")
    (place / "b/.hidden/x.txt").write_text("hidden")
    (place / "b/.x.txt").write_text("hidden")
    (place / "b/x.csv").write_text("other")
    return place


def test_all_formats_are_read_in_the_order_of_their_names(folder):
    assert read(folder) == [
        *("The heading\nmarkdown", "c\ntext", "T\nline", '"C"\n1\n2', "\nno title", "P\nparquet", "\nsecond"),
        "no_heading\nplain # text",
    ]
    assert read(folder / "b/c.txt") == ["c\ntext"]


def test_long_texts_are_split_and_keep_their_title(tmp_path):
    (tmp_path / "x.txt").write_text("a b\n\nc  d e\tf g")
    assert read(tmp_path, 3) == ["x\na b\n\nc", "x\nd e\tf", "x\ng"]
    assert read(tmp_path, 1) == [f"x\n{letter}" for letter in "abcdefg"]
    (tmp_path / "x.txt").write_text(" ")
    assert read(tmp_path) == ["x\n"]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("x.txt", b"\xff", "x.txt: not UTF-8 text at byte 0"),
        ("x.jsonl", b'{"text": "a"}\n{"body": "b"}\n', "x.jsonl row 1 (line 2): expected 'text' and maybe 'title', or"),
        ("x.jsonl", b'{"text": 5}\n', "its keys: text"),
        ("x.jsonl", b'{"text": "a", "title": 5}\n', "expected 'text'"),
        ("x.jsonl", b"{", "not JSON"),
        ("x.parquet", b"PAR1", "not a readable Parquet file"),
    ],
)
def test_a_document_that_cannot_be_read_is_named(tmp_path, name, content, text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert text in str(caught.value)


def test_a_place_without_documents_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text(json.dumps("x"))
    for place, text in (
        (tmp_path, "has no files of .txt, .md"),
        (tmp_path / "x.csv", "is not a file of .txt, .md"),
        (tmp_path / "none", "is not a folder or file of .txt, .md"),
    ):
        with pytest.raises(DataError, match=text):
            document_files(place)
