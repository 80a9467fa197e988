"""Reading of task folders: what is a task, its settings, and every mistake with file and key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from folder_builders import make_folder

from agentrl.data.rows import open_rows
from agentrl.data.rows.open import check_dataset
from agentrl.data.task_folders.folder import MAX_TEXT_BYTES, TaskFolderError, read_task_folder, without_canary
from agentrl.errors import DataError


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(TaskFolderError) as caught:
        read_task_folder(folder)
    return [each.replace(f"{folder}", "TASK") for each in caught.value.problems]


def test_an_empty_task_toml_is_valid(tmp_path):
    task = read_task_folder(make_folder(tmp_path / "one"))
    assert (task.name, task.instruction) == ("one", "Write 7 to /app/n.txt")
    assert (task.settings.verifier.timeout_sec, task.settings.environment.os) == (600.0, "linux")


def test_settings_are_read_and_unknown_keys_are_ignored(tmp_path):
    text = """
    schema_version = "1.4"
    new_key = 1
    [task]
    name = "org/name"
    keywords = ["a"]
    [agent]
    timeout_sec = 60
    user = "agent"
    [verifier]
    timeout_sec = 12.5
    env = {A = "b"}
    [environment]
    docker_image = "image:1"
    memory_mb = 512
    workdir = "/srv/x"
    env = {C = "d"}
    [environment.new]
    x = 1
    [solution.env]
    E = "f"
    """
    settings = read_task_folder(make_folder(tmp_path, settings=text)).settings
    assert read_task_folder(tmp_path).name == "org/name"
    assert (settings.agent.timeout_sec, settings.agent.user) == (60.0, "agent")
    assert (settings.verifier.timeout_sec, settings.verifier.env) == (12.5, {"A": "b"})
    environment = settings.environment
    assert (environment.docker_image, environment.memory_mb, environment.workdir) == ("image:1", 512, "/srv/x")
    assert (environment.env, settings.solution.env) == ({"C": "d"}, {"E": "f"})


def test_all_mistakes_are_reported_with_file_and_key(tmp_path):
    text = '[verifier]\ntimeout_sec = "soon"\n[environment]\ncpus = -1\nworkdir = "app"\n[task]\nname = "no"\n'
    make_folder(tmp_path, settings=text, instruction=None, test=None)
    (tmp_path / "environment").rmdir()
    found = problems_of(tmp_path)
    for part in ("'verifier.timeout_sec'", "'environment.cpus'", "'environment.workdir'", "'task.name'"):
        assert sum(line.startswith(f"TASK/task.toml: {part}: ") for line in found) == 1, part
    for line in (
        "TASK: no folder 'environment'",
        "TASK/instruction.md: does not exist",
        "TASK: no file 'tests/test.sh'",
    ):
        assert line in found


@pytest.mark.parametrize("text", ["a = ", "a = 1\na = 2", "x = " + "[" * 5000, "[agent]\ntimeout_sec = nan"])
def test_wrong_toml(tmp_path, text):
    (found,) = problems_of(make_folder(tmp_path, settings=text))
    assert found.startswith("TASK/task.toml: ")


def test_bytes_that_are_no_text(tmp_path):
    make_folder(tmp_path)
    (tmp_path / "task.toml").write_bytes(b"a\xff")
    (tmp_path / "instruction.md").write_bytes(b"\x00\xff")
    assert problems_of(tmp_path) == ["TASK/task.toml: not UTF-8 at byte 1", "TASK/instruction.md: not UTF-8 at byte 1"]


def test_links_devices_and_large_files_are_not_read(tmp_path):
    (tmp_path / "secret").write_text("key")
    folder = make_folder(tmp_path / "task", instruction=None, settings=None)
    (folder / "instruction.md").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "task.toml")
    assert problems_of(folder) == ["TASK/task.toml: not a regular file", "TASK/instruction.md: not a regular file"]
    (folder / "instruction.md").unlink()
    with (folder / "instruction.md").open("wb") as file:
        file.truncate(MAX_TEXT_BYTES + 1)
    assert problems_of(folder)[-1] == f"TASK/instruction.md: larger than {MAX_TEXT_BYTES} bytes"


def test_tests_behind_a_link_are_none(tmp_path):
    other = make_folder(tmp_path / "other")
    folder = make_folder(tmp_path / "task", test=None)
    (folder / "tests").symlink_to(other / "tests")
    assert problems_of(folder) == ["TASK: no file 'tests/test.sh'"]


def test_an_environment_behind_a_link_is_none(tmp_path):
    folder = make_folder(tmp_path / "task")
    (folder / "environment").rmdir()
    (folder / "environment").symlink_to("/etc")
    assert problems_of(folder) == ["TASK: no folder 'environment'"]


def test_a_step_without_its_files(tmp_path):
    (found,) = problems_of(make_folder(tmp_path, settings='[[steps]]\nname = "one"\n'))
    assert found == "TASK/steps/one/instruction.md: does not exist"


def test_terminal_bench_is_refused_with_the_command_that_converts_it(tmp_path):
    make_folder(tmp_path, settings=None)
    (tmp_path / "task.yaml").write_text("instruction: x\n")
    (found,) = problems_of(tmp_path)
    assert "Terminal-Bench" in found
    assert "harbor task migrate" in found


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<!-- x CANARY y -->\n# Canary 1\n\n \nDo it\n# canary\n", "Do it\n# canary\n"),
        ("Do it\n<!-- canary -->", "Do it\n<!-- canary -->"),
        ("# Title\nDo it", "# Title\nDo it"),
        ("\n\nDo it", "Do it"),
        ("<!-- canary -->", ""),
    ],
)
def test_canary_lines_at_the_start_are_left_out(text, kept):
    assert without_canary(text) == kept


def test_rows_of_a_folder_of_tasks(tmp_path):
    for name in ("b", "a"):
        make_folder(tmp_path / name, instruction=name)
    (tmp_path / "notes.txt").write_text("no task")
    (tmp_path / "c").mkdir()
    rows = open_rows(str(tmp_path))
    assert [row["prompt"] for row in rows.scan(len(rows))] == ["a", "b"]
    extra = {"task_folder": str(tmp_path / "a"), "task_name": "a"}
    assert rows[0] == {"prompt": "a", "data_source": "task_folder", "extra_info": extra}
    assert rows.where(1) == str(tmp_path / "b")


def test_rows_of_one_task_and_of_a_pattern(tmp_path, monkeypatch):
    for name in ("x1", "x2", "y1"):
        make_folder(tmp_path / name, instruction=name)
    assert len(open_rows(str(tmp_path / "y1"))) == 1
    check_dataset(f"{tmp_path}/x*")
    assert [open_rows(f"{tmp_path}/x*")[row]["prompt"] for row in range(2)] == ["x1", "x2"]
    monkeypatch.chdir(tmp_path)
    assert open_rows("y*")[0]["extra_info"]["task_folder"] == str(tmp_path / "y1")


def test_a_folder_without_tasks(tmp_path):
    with pytest.raises(DataError, match="no task folders"):
        open_rows(str(tmp_path))


def test_all_wrong_folders_are_reported_at_once(tmp_path):
    make_folder(tmp_path / "good")
    make_folder(tmp_path / "a", settings="x =")
    make_folder(tmp_path / "b", test=None)
    with pytest.raises(DataError) as caught:
        open_rows(str(tmp_path))
    first, second = str(caught.value).split("\n")
    assert first.startswith(f"{tmp_path}/a/task.toml: not TOML")
    assert second == f"{tmp_path}/b: no file 'tests/test.sh'"


@pytest.mark.parametrize(
    "text",
    [
        '[environment]\ndocker_image = "--volume=/:/host"',
        '[environment]\ndocker_image = "a b"',
        '[environment]\nworkdir = "/a\\u0000b"',
        '[environment]\nenv = {"A; id" = "b"}',
        '[verifier]\nenv = {A = "a\\u0000"}',
    ],
)
def test_values_that_a_command_line_would_misread(tmp_path, text):
    (found,) = problems_of(make_folder(tmp_path, settings=text))
    assert "String should match pattern" in found
