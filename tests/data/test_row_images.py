"""Images of rows: from the image column and the messages to the prompt's placeholders."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from vision_models import picture

from agentrl.config.data import DataConfig
from agentrl.data.images import with_images
from agentrl.data.in_memory import given_files
from agentrl.data.tasks import load_tasks
from agentrl.errors import DataError
from agentrl.types.messages import image_names
from agentrl.utils.images import content_hash, data_url, open_image

RED, BLUE = picture("red"), picture("blue")
PART_RED, PART_BLUE = ({"type": "image", "image": content_hash(data)} for data in (RED, BLUE))


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def task_of(folder: Path, row: dict[str, object]):
    (folder / "t.jsonl").write_text(json.dumps(row) + "\n")
    (task,) = load_tasks([str(folder / "t.jsonl")], DataConfig())
    return task


def test_image_placeholders_become_message_parts(tmp_path):
    row = {"prompt": "First <image>, then\n<image>!", "images": [data_url(RED), data_url(BLUE)]}
    task = task_of(tmp_path, row)
    parts = [text("First "), PART_RED, text(", then\n"), PART_BLUE, text("!")]
    assert task.messages == [{"role": "user", "content": parts}]
    assert task.images == {content_hash(RED): RED, content_hash(BLUE): BLUE}


def test_marks_and_parts_of_several_messages_share_the_column(tmp_path):
    prompt = [
        {"role": "system", "content": "<image>"},
        {
            "role": "user",
            "content": [{"type": "image"}, text("and <image>"), {"type": "image", "image": data_url(BLUE)}],
        },
    ]
    task = task_of(tmp_path, {"prompt": prompt, "images": [data_url(data) for data in (RED, BLUE, RED)]})
    assert image_names(task.messages) == [content_hash(data) for data in (RED, BLUE, RED, BLUE)]
    assert len(task.images) == 2  # each image is stored once


def test_parts_as_chat_clients_send_them(tmp_path):
    content = [{"type": "image_url", "image_url": {"url": data_url(RED)}}, text("What is it?")]
    assert task_of(tmp_path, {"prompt": [{"role": "user", "content": content}]}).messages[0]["content"] == [
        PART_RED,
        text("What is it?"),
    ]


def test_image_placeholder_without_images_is_text(tmp_path):
    prompt = [
        {"role": "user", "content": "what does <image> mean in HTML?"},
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
    ]
    task = task_of(tmp_path, {"prompt": prompt, "images": []})
    assert (task.messages, task.images) == (prompt, {})


def test_bytes_of_a_parquet_file_are_unchanged(tmp_path):
    rows = pa.table({"prompt": ["<image>"], "images": pa.array([[{"bytes": RED}]])})
    pq.write_table(rows, tmp_path / "t.parquet")
    (task,) = load_tasks([str(tmp_path / "t.parquet")], DataConfig())
    assert list(task.images.values()) == [RED]


def test_one_image_need_not_be_a_list(tmp_path):
    assert list(task_of(tmp_path, {"prompt": "<image>", "images": data_url(RED)}).images.values()) == [RED]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<image><image>", "field 'images': 1 images, but the prompt has 2 placeholders"),
        ("none", "1 images, but the prompt has 0 placeholders"),
        (
            [{"role": "user", "content": [{"type": "image", "image": "gone.png"}]}],
            "field 'a part of the prompt': cannot r",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, prompt, expected):
    with pytest.raises(DataError, match=expected) as caught:
        task_of(tmp_path, {"prompt": prompt, "images": [data_url(RED)]})
    assert str(caught.value).startswith(f"{tmp_path}/t.jsonl row 0 (line 1): ")


@given(st.lists(st.sampled_from(["<image>", "a", "<b>", "\n"]), max_size=12))
def test_texts_keep_every_letter_around_the_images(pieces):
    column = [data_url(RED)] * pieces.count("<image>")
    messages, found = with_images([{"role": "user", "content": "".join(pieces)}], {"images": column}, "images")
    content = messages[0]["content"]
    shown = content if isinstance(content, str) else "".join(part.get("text", "<image>") for part in content)
    assert shown == "".join(pieces)
    assert len(found) == bool(column)


@pytest.mark.parametrize("image", [RED, Image.open(BytesIO(RED))])
def test_rows_given_in_python_may_hold_images(tmp_path, image):
    _, lines = given_files([{"prompt": "<image>", "images": [image]}], "data")
    (data,) = task_of(tmp_path, json.loads(lines)).images.values()
    assert open_image(data).tobytes() == open_image(RED).tobytes()


@pytest.mark.parametrize("value", [b"no image", Path("red.png"), object()])
def test_other_values_without_json_form_are_refused(value):
    with pytest.raises(DataError, match=r"data\[0\]: not JSON"):
        given_files([{"prompt": "x", "images": [value]}], "data")
