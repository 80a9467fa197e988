"""Which kinds of sandboxes can run a task, and why the others cannot."""

from __future__ import annotations

import pytest
from folder_builders import make_folder
from linux_root import linux_root

from agentrl.sandboxes.loading import SANDBOXES
from agentrl.task_folders import NotRunnableError, plan, read_task_folder

CONTAINER_KINDS = ("docker", "podman")
PLAIN = "FROM debian:bookworm\nWORKDIR /app\n"


def settings_of(kind, **options):
    return SANDBOXES.get(kind).settings.model_validate({"kind": kind, **options})


def reasons(folder, kind, **options):
    try:
        plan(read_task_folder(folder), settings_of(kind, **options))
    except NotRunnableError as error:
        return error.reasons
    return []


def test_a_simple_task_runs_everywhere(tmp_path):
    folder = make_folder(tmp_path, dockerfile=PLAIN)
    assert {kind: bool(reasons(folder, kind)) for kind in SANDBOXES.names()} == {
        "local": False,
        "docker": False,
        "podman": False,
        "e2b": False,
        "sandbox_fusion": True,
    }


def test_an_image_needs_containers(tmp_path):
    folder = make_folder(tmp_path, settings='[environment]\ndocker_image = "python:3.12"\n')
    assert reasons(folder, "local") == ["task.toml: 'environment.docker_image' needs a sandbox with images"]
    planned = plan(read_task_folder(folder), settings_of("docker"))
    assert (planned.setup.image, planned.setup.build) == ("python:3.12", None)


def test_no_dockerfile_means_app_on_local_and_is_refused_by_containers(tmp_path):
    folder = make_folder(tmp_path)
    assert plan(read_task_folder(folder), settings_of("local")).setup.folder == "/app"
    assert reasons(folder, "docker") == ["no environment/Dockerfile, and no 'environment.docker_image' in task.toml"]


def test_every_reason_is_given(tmp_path):
    lines = "FROM debian\nRUN apt-get update\nCOPY none /app/\nCOPY a /etc/a\nCOPY a /x\nWORKDIR /usr/src\n"
    folder = make_folder(tmp_path, dockerfile=lines, a="", settings="[environment]\ngpus = 1\n")
    found = reasons(folder, "local")
    assert found[0] == "task.toml: 'environment.gpus' with this value is not supported"
    assert any(each.startswith("environment/Dockerfile: line 2: RUN: 'apt-get' needs an image") for each in found)
    assert f"{tmp_path}/environment: no file 'none'" in found
    assert {
        "'/usr/src' is in a system folder, which cannot be written",
        "'/etc/a' is in a system folder, which cannot be written",
    } <= {*found}
    assert "'/x' lies in the root folder, which cannot be written" in found
    assert len(found) == 6


def test_with_a_root_only_kernel_folders_cannot_be_written(tmp_path):
    lines = "FROM debian\nCOPY a /etc/a\nCOPY a /x\nWORKDIR /usr/src\nWORKDIR /proc/1\n"
    folder = make_folder(tmp_path, dockerfile=lines, a="")
    assert reasons(folder, "local", root=str(linux_root())) == [
        "'/proc/1' is in a system folder, which cannot be written"
    ]


def test_a_root_that_cannot_be_used_is_a_reason_of_every_task(tmp_path):
    folder = make_folder(tmp_path, dockerfile=PLAIN, settings="[environment]\ngpus = 1\n")
    first, second = reasons(folder, "local", root=str(tmp_path / "none"))
    assert "other than /" in first
    assert "environment.gpus" in second


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ('[environment]\nos = "windows"', "environment.os"),
        ('[environment.healthcheck]\ncommand = "true"', "environment.healthcheck"),
        ('[[environment.mcp_servers]]\nname = "x"', "environment.mcp_servers"),
        ('[environment]\nnetwork_mode = "allowlist"', "environment.network_mode"),
        ('[agent]\nnetwork_mode = "allowlist"', "agent.network_mode"),
        ('[verifier]\nnetwork_mode = "allowlist"', "verifier.network_mode"),
        ('[verifier]\nenvironment_mode = "separate"', "verifier.environment_mode"),
        ("[verifier.environment]\ncpus = 1", "verifier.environment"),
        ("[[verifier.collect]]\ncommand = 'x'", "verifier.collect"),
        ('[agent]\nuser = "me"', "agent.user"),
        ("[verifier]\nuser = 1000", "verifier.user"),
        ('[verifier]\nenv = {KEY = "${OPENAI_API_KEY}"}', "verifier.env"),
    ],
)
def test_settings_that_are_not_supported_are_named(tmp_path, settings, key):
    folder = make_folder(tmp_path, dockerfile=PLAIN, settings=settings)
    (folder / "tests" / "test.bat").write_text("")
    for kind in ("local", "docker"):
        assert any(f"task.toml: '{key}'" in each for each in reasons(folder, kind)), kind


def test_several_containers_are_refused(tmp_path):
    folder = make_folder(tmp_path, dockerfile=PLAIN, **{"docker-compose.yaml": ""})
    for kind in ("local", "docker"):
        assert reasons(folder, kind) == ["environment/docker-compose.yaml: several containers are not supported"]


def test_files_that_docker_would_leave_out_need_containers(tmp_path):
    folder = make_folder(tmp_path, dockerfile=PLAIN, **{".dockerignore": "a"})
    assert reasons(folder, "local") == ["environment/.dockerignore needs a sandbox with images"]
    assert reasons(folder, "docker") == []


def test_links_in_the_tests_are_found_before_a_run(tmp_path):
    folder = make_folder(tmp_path, dockerfile=PLAIN)
    (folder / "tests" / "passwd").symlink_to("/etc/passwd")
    for kind in ("local", "docker"):
        (found,) = reasons(folder, kind)
        assert "tests/passwd: neither a file nor a folder" in found


@pytest.mark.parametrize(
    ("dockerfile", "settings", "why"),
    [
        ("FROM debian\nWORKDIR /a\0b\n", "", "environment/Dockerfile: it has a null byte"),
        ("FROM debian\nWORKDIR /app/../usr/x\n", "", "'/usr/x' is in a system folder, which cannot be written"),
        ("FROM debian\nWORKDIR //etc\n", "", "'/etc' is in a system folder, which cannot be written"),
        (
            PLAIN,
            '[environment]\nworkdir = "/app/../proc/1"\n',
            "'/proc/1' is in a system folder, which cannot be written",
        ),
    ],
)
def test_paths_that_lead_elsewhere(tmp_path, dockerfile, settings, why):
    assert reasons(make_folder(tmp_path, dockerfile=dockerfile, settings=settings), "local") == [why]
