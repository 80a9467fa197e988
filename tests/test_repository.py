"""Files around the code: the CI workflow, templates, Dockerfile, citation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
PAGES = [ROOT / name for name in ("AGENTS.md", "SECURITY.md", "CONTRIBUTING.md", ".github/pull_request_template.md")]


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name.upper(), rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def copied_sources() -> list[str]:
    return [source for name, rest in instructions() if name == "COPY" for source in shlex.split(rest)[:-1]]


def of(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def test_the_image_has_a_pinned_base_and_does_not_run_as_root():
    (base,) = of("FROM")
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-[\w-]+", base)
    assert f">={base.removeprefix('python:').rpartition('.')[0]}" == PROJECT["requires-python"]
    assert int(of("USER")[-1]) > 0
    names = [name for name, _ in instructions()]
    assert names.index("USER") > names.index("RUN")  # root installs, another user runs
    assert of("ENTRYPOINT") == ['["agentrl"]']
    assert not {"ADD", "MAINTAINER"} & set(names)


def test_the_image_copies_what_exists_and_is_not_ignored():
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in rules
    assert {source for source in copied_sources() if f"!{source}" not in rules} == set()
    assert [source for source in copied_sources() if not (ROOT / source).exists()] == []
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    needed = {
        *wheel["wheel"]["packages"],
        *wheel["wheel"]["force-include"],
        PROJECT["readme"],
        *PROJECT["license-files"],
    }
    assert needed <= set(copied_sources())


def test_the_image_installs_the_versions_that_are_tested():
    (run,) = of("RUN")
    installs = [part for part in run.split("&&") if "pip install" in part]
    assert all("constraints.txt" in part for part in installs)
    (extras,) = re.findall(r"\.\[([\w,]+)\]", run)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert any("PIP_NO_CACHE_DIR=1" in environment for environment in of("ENV"))


def test_the_workflow_runs_the_same_script_as_everywhere_and_the_newest_versions():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    commands = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert {"bash .ci/run", "make newest"} <= set(commands)
    assert workflow["permissions"] == {"contents": "read"}
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    other = workflow["jobs"].pop("other-python")["strategy"]["matrix"]["python"]
    for job in workflow["jobs"].values():
        (python,) = [
            step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {})
        ]
        default = python.split()[-1]  # others are for environments of their own
        assert f">={default}" == PROJECT["requires-python"]
    declared = {each.split(" :: ")[-1] for each in PROJECT["classifiers"] if re.search(r"Python :: 3\.", each)}
    assert declared == {PROJECT["requires-python"].removeprefix(">="), *other}


def test_every_target_that_is_named_is_in_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(phony.split()) == targets
    for path in [*PAGES, ROOT / ".ci/run", ROOT / ".github/workflows/ci.yml"]:
        named = re.findall(r"(?:^|`|run: )make ([\w-]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert [name for name in named if name not in targets] == [], path


def test_make_understands_every_target():
    subprocess.run(
        ["make", "--dry-run", "newest", "lock", "quickstart", "check"], cwd=ROOT, check=True, capture_output=True
    )


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_are_forms(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        assert form.keys() == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert {"cff-version", "message", "title"} <= citation.keys()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_these_pages_name_exist(path):
    named = re.findall(
        r"`((?:agentrl|configs|tests|docs|examples|benchmarks)/[\w./]*|[A-Z]+\.md)`", path.read_text(encoding="utf-8")
    )
    assert [name for name in named if not (ROOT / name).exists()] == []
