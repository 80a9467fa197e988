"""Packaging: every import is declared, every dependency is imported, and no text names an unknown package."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from source_files import statements, syntax
from test_repository import copied_sources

from agentrl.capabilities import BACKENDS
from agentrl.errors import install_command

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_BY_TORCH = {"torch.utils.tensorboard": "tensorboard"}
OTHER_NAMES = {"megatron": "megatron-core"}
TOLD_TO_INSTALL = re.compile(r"pip install (?:[^`\n]*['\" ])?agentrl(?![\w-])")


def requirements(*groups: str) -> dict[str, Requirement]:
    """The declared requirements of the core (named "") and of the extras, by canonical name."""
    declared = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    parsed = (Requirement(line) for group in groups for line in declared[group])
    return {canonicalize_name(each.name): each for each in parsed}


def imported_distributions() -> Iterator[tuple[str, Path]]:
    """(distribution, file) of each third-party import inside agentrl."""
    providers = packages_distributions()
    for path in (ROOT / "agentrl").rglob("*.py"):
        for module in imported_modules(syntax(path)):
            top = module.partition(".")[0]
            if found := IMPORTED_BY_TORCH.get(module):
                yield found, path
            # an extra that is not installed uses its module's name
            if top not in {"agentrl", *sys.stdlib_module_names}:
                default = OTHER_NAMES.get(top, top)
                yield str(canonicalize_name(providers.get(top, [default])[0])), path


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_every_import_is_declared_and_every_declaration_is_imported():
    extras = [name for name in PROJECT["optional-dependencies"] if name != "dev"]
    imported = {name for name, _ in imported_distributions()}
    assert "torch" in imported  # the test does see imports
    assert imported - requirements("", *extras).keys() == set()
    # megatron-core imports emerging_optimizers, which the backend's spec names
    by_others = {str(canonicalize_name(each)) for name in BACKENDS.builtins() for each in BACKENDS.get(name).modules}
    assert requirements("", *extras).keys() - imported - by_others == set()


def test_every_extra_that_a_message_names_exists():
    words = r"install_command\(\"([\w-]+)\"\)|install_command\('([\w-]+)'\)|agentrl-train\[([\w,-]+)\]"
    for path in texts():
        for found in re.findall(words, path.read_text(encoding="utf-8")):
            named = set("".join(found).split(","))
            assert named <= PROJECT["optional-dependencies"].keys(), path


def test_install_hints_name_only_our_package():
    strangers = [str(path) for path in texts() if TOLD_TO_INSTALL.search(path.read_text(encoding="utf-8"))]
    assert strangers == []
    assert TOLD_TO_INSTALL.search("pip install 'agentrl[lora]'")
    assert TOLD_TO_INSTALL.search("pip install agentrl")
    assert not TOLD_TO_INSTALL.search(install_command("lora"))
    assert PROJECT["name"] in install_command("lora")


def texts() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in ("agentrl", "configs", "docs", "examples", ".github"):
        files = (path for path in (ROOT / folder).rglob("*") if path.suffix in {".md", ".py", ".yaml", ".yml", ".txt"})
        yield from files


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): Version(str(each.specifier).removeprefix("==")) for each in parsed}


def test_tested_versions_are_within_bounded_dependencies():
    declared = requirements("", "datasets", "lora")
    assert {name for name in declared if name not in pins()} == set()
    assert [
        f"{each} does not admit {pins()[name]}" for name, each in declared.items() if pins()[name] not in each.specifier
    ] == []
    every = requirements("", *PROJECT["optional-dependencies"].keys() - {"dev"})
    unbounded = [name for name, each in every.items() if "<" not in str(each.specifier).replace("<=", "<")]
    # pydantic pins the one; the other has calendar versions and a single file
    assert unbounded == ["pydantic-core", "certifi"]
    assert "0.5.21" in every["sglang"].specifier  # the version that `make sglang` installs and its tests use
    assert "sglang==0.5.21" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_lock_agrees_with_what_is_declared_and_tested():
    """To fix a failure, run `uv lock`."""
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    (own,) = [package for package in locked if package["name"] == PROJECT["name"]]
    declared = requirements("", *PROJECT["optional-dependencies"])
    recorded = {
        each["name"]: str(Requirement(f"x{each.get('specifier', '')}").specifier)
        for each in own["metadata"]["requires-dist"]
    }
    assert recorded == {name: str(each.specifier) for name, each in declared.items()}
    versions = {package["name"]: Version(package["version"]) for package in locked}
    assert [name for name, each in declared.items() if versions[name] not in each.specifier] == []
    for name in ("torch", "transformers", "tokenizers", "peft", "huggingface-hub"):
        assert versions[name] == pins()[name]


def test_lock_file_names_only_public_hosts():
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://([^/\"]+)", text)) <= {
        "pypi.org",
        "files.pythonhosted.org",
        "download.pytorch.org",
    }


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Built only from the files that the Dockerfile copies."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in copied_sources():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", str(folder), "--no-deps", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run(command, check=True)
    (built,) = folder.glob("agentrl_train-*.whl")
    return built


@pytest.mark.slow
def test_wheel_contains_configs_examples_types_and_license(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [path for folder in ("configs", "examples") for path in (ROOT / folder).rglob("*.*")]
    needed = {f"agentrl/{path.relative_to(ROOT)}" for path in shipped if "__pycache__" not in path.parts}
    assert {"agentrl/configs/experiment/calculator.yaml", "agentrl/examples/calculator/tool.py"} <= needed <= names
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "agentrl").rglob("*.py")} <= names
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "agentrl/viewer/static").iterdir()} <= names
    assert "agentrl/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "examples")) or "__pycache__" in name for name in names)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of an environment with the agentrl wheel only."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    install = ["--python", str(folder / "bin/python"), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    # a .pth line; .pth files in that folder, such as an editable agentrl's, are not read
    (packages_of(folder) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def packages_of(environment):
    (packages,) = (environment / "lib").glob("python3*/site-packages")
    return packages


def runner(environment, folder):
    """A function that runs a program of the environment in a folder, and returns what it prints."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(program, *words):
        command = [str(environment / "bin" / program), *words]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    return run


@pytest.mark.slow
def test_an_experiment_starts_from_the_wheel_only(installed, tmp_path):
    run = runner(installed, tmp_path)
    script = packages_of(installed) / "agentrl/examples/calculator/make_task.py"
    run("python", str(script), "--out", "outputs/quickstart/task")
    assert "sft" in run("agentrl", "train", "+experiment=calculator_sft", "--explain")
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["quickstart"]


@pytest.mark.nightly
def test_quickstart_runs_from_the_wheel_only(installed, tmp_path):
    run = runner(installed, tmp_path)
    short = ["trainer.total_training_steps=1", "trainer.test_freq=1", "data.val_max_samples=2"]
    out = run("agentrl", "quickstart", *short)
    assert str(packages_of(installed) / "agentrl/examples/calculator/make_task.py") in out
    assert (tmp_path / "outputs/quickstart/summary.json").is_file()
    commands = [line.split()[1:] for line in out.splitlines() if line.startswith(f"  {installed}/bin/agentrl ")]
    view, replay, train = commands
    assert view == ["view", "outputs/quickstart/rl"]
    assert "audit" in run("agentrl", *replay)
    run("agentrl", *train, *short)
