"""Dockerfiles that a sandbox without images can follow, and why others cannot."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from folder_builders import make_folder

from agentrl.data.task_folders.dockerfile import Copy, Run, read_dockerfile
from agentrl.data.task_folders.files import MAX_BYTES, FilesError, copied_members, folder_members, pack


def test_a_dockerfile_that_copies_and_sets():
    recipe = read_dockerfile(
        """
        # comment
        FROM --platform=linux/amd64 docker.io/library/python:3.12-slim AS base
        ENV A=1 B="two words"
        ENV C three words
        WORKDIR /app
        COPY --chown=root:root a.txt b/ ./
        ADD --chmod=755 run.sh /app
        WORKDIR src
        # in between
        RUN mkdir -p /data/in && \\
            # comment
            echo x > y.txt; chmod 600 y.txt
        COPY ["c d.txt", "/data/e.txt"]
        USER root
        EXPOSE 80
        CMD ["bash"]
        """
    )
    assert recipe.problems == []
    assert recipe.env == {"A": "1", "B": "two words", "C": "three words"}
    assert (recipe.folder, recipe.folders) == ("/app/src", ["/app", "/app/src"])
    copied, added, run, listed = recipe.steps
    assert copied == Copy(("a.txt", "b/"), "/app/")
    assert added == Copy(("run.sh",), "/app/", 0o755)  # an existing folder
    assert listed == Copy(("c d.txt",), "/data/e.txt")
    assert isinstance(run, Run)
    assert (run.folder, dict(run.env)["B"]) == ("/app/src", "two words")
    assert run.command.split() == ["mkdir", "-p", "/data/in", "&&", "echo", "x", ">", "y.txt;", "chmod", "600", "y.txt"]
    assert recipe.mentioned == ["/data/in"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("FROM alpine:3", "'alpine:3' is not debian"),
        ("FROM debian\nFROM debian", "several stages"),
        ("ARG X=1\nFROM debian", "lines before FROM"),
        ("FROM debian\nRUN apt-get update", "'apt-get' needs an image"),
        ("FROM debian\nRUN mkdir x && pip install y", "'pip' needs an image"),
        ("FROM debian\nRUN echo $(id)", "command substitution"),
        ("FROM debian\nRUN <<E\necho\nE", "only a plain shell command"),
        ('FROM debian\nRUN ["echo"]', "only a plain shell command"),
        ("FROM debian\nRUN --mount=type=cache,target=/x echo", "only a plain shell command"),
        ("FROM debian\nCOPY --from=x a b", "'--from=x' needs an image"),
        ("FROM debian\nCOPY a $HOME/b", "variables"),
        ("FROM debian\nCOPY a", "cannot be read"),
        ("FROM debian\nCOPY [1]", "cannot be read"),
        ("FROM debian\nADD https://x.org/a /a", "downloads"),
        ("FROM debian\nADD a.tar.gz /app", "archives"),
        ("FROM debian\nENV A", "not NAME=VALUE"),
        ("FROM debian\nUSER agent", "other than root"),
        ("FROM debian\nSHELL x", "SHELL: needs an image"),
        ("FROM debian\nENTRYPOINT x", "ENTRYPOINT: needs an image"),
        ("FROM debian\nRUN echo 'x", "No closing quotation"),
        ("# nothing", "no FROM"),
        ("", "no FROM"),
    ],
)
def test_what_needs_an_image(line, why):
    found = read_dockerfile(line).problems
    assert any(why in each for each in found), found


def test_problems_name_their_lines():
    found = read_dockerfile("FROM debian\n\nRUN apt-get \\\n  update\nUSER a\n").problems
    assert [each.split(":")[0] for each in found] == ["line 3", "line 5"]


def members(folder, step):
    return {name: mode for name, _, mode in copied_members(step, folder / "environment")}


def test_files_that_a_line_copies(tmp_path):
    make_folder(tmp_path, **{"a.txt": "a", "d__b.txt": "b", "d__e__c.txt": "c", "x1.py": "", "x2.py": ""})
    assert members(tmp_path, Copy(("a.txt",), "/app/n.txt", 0o600)) == {"/app/n.txt": 0o600}
    assert members(tmp_path, Copy(("a.txt",), "/app/")) == {"/app/a.txt": None}
    inside = {"/app": None, "/app/b.txt": None, "/app/e": None, "/app/e/c.txt": None}
    assert members(tmp_path, Copy(("d",), "/app")) == inside
    assert [*members(tmp_path, Copy(("x*.py",), "/app/"))] == ["/app/x1.py", "/app/x2.py"]
    assert "/d/e/c.txt" in members(tmp_path, Copy((".",), "/"))


@pytest.mark.parametrize(("source", "why"), [("none", "no file"), ("../task.toml", "outside"), ("out", "link")])
def test_files_that_cannot_be_copied(tmp_path, source, why):
    make_folder(tmp_path)
    (tmp_path / "environment" / "out").symlink_to("/etc")
    with pytest.raises(FilesError, match=why):
        copied_members(Copy((source,), "/app/"), tmp_path / "environment")


def test_links_and_devices_in_a_folder_are_refused(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(FilesError, match=r"link: neither a file nor a folder"):
        folder_members(tmp_path, "/tests")
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FilesError, match=r"pipe: neither"):
        folder_members(tmp_path, "/tests")


def test_folders_that_are_too_large(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(FilesError, match="more than"):
        folder_members(tmp_path, "/tests")


def test_a_file_that_becomes_a_link_after_it_was_listed_is_not_read(tmp_path):
    (tmp_path / "a").write_text("a")
    found = folder_members(tmp_path, "/tests")
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("/etc/passwd")
    with pytest.raises(FilesError, match="a: "):
        pack(found)


def test_archives_keep_names_modes_and_content(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.sh").write_text("x")
    (tmp_path / "d" / "run.sh").chmod(0o4755)
    with tarfile.open(fileobj=io.BytesIO(pack(folder_members(tmp_path, "/tests")))) as archive:
        found = {each.name: (oct(each.mode), each.uid) for each in archive}
        assert found == {"tests/d": ("0o755", 0), "tests/d/run.sh": ("0o755", 0)}  # without setuid
        assert archive.extractfile("tests/d/run.sh").read() == b"x"
