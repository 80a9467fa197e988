"""Registries of engines and backends, and the capabilities in their specs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.backends.base import ModelRequest, load_backend
from agentrl.capabilities import (
    BACKEND_OPTIONS,
    BACKENDS,
    ENGINE_OPTIONS,
    ENGINES,
    BackendSpec,
    EngineSpec,
    backend_spec,
    check_installed,
    engine_spec,
    known_engine,
)
from agentrl.cli.early import check_early
from agentrl.config import RunConfig, validate_config
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.config.uses import Use, mark_of
from agentrl.config.validate import config_fields
from agentrl.errors import ConfigError
from agentrl.replay.trusted_config import trusted_values

PACKAGE = Path(__file__).parents[1] / "agentrl"
MARKER = "import pathlib\npathlib.Path(__file__).with_name('was_run').touch()\n"


def configured(**keys: str) -> RunConfig:
    sections = {"engine": "rollout", "backend": "actor"}
    return validate_config({"model": {"path": "m"}, **{sections[key]: {key: name} for key, name in keys.items()}})


def test_built_in_specs_read_options_that_exist():
    assert ENGINES.builtins() == ["scripted", "sglang", "torch"]
    assert all(engine_spec(name).options <= set(ENGINE_OPTIONS) for name in ENGINES.builtins())
    assert all(backend_spec(name).options <= set(BACKEND_OPTIONS) for name in BACKENDS.builtins())


def test_specs_are_imported_without_heavy_libraries():
    code = (
        "from agentrl.capabilities import *; import sys\n"
        "specs = [*map(engine_spec, ENGINES.builtins()), *map(backend_spec, BACKENDS.builtins())]\n"
        "print(len(specs), *sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found[0] == "5"
    assert {"torch", "transformers", "sglang", "numpy", "megatron"} & set(found) == set()


@pytest.mark.parametrize("name", ["sglng", "vllm"])
def test_an_unknown_name_is_refused_with_the_valid_names(name):
    with pytest.raises(ConfigError) as raised:
        configured(engine=name)
    (line,) = str(raised.value).splitlines()
    assert all(valid in line for valid in ("'rollout.engine'", *ENGINES.builtins(), "file.py:NAME"))
    assert ("did you mean 'sglang'?" in line) == (name == "sglng")


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [
        (
            {"python": (99, 0)},
            r"needs Python 99.0 or later, not 3.\d+: make an environment with that version, and in it ",
        ),
        ({"modules": ("json", "no_such_module")}, "needs no_such_module, not installed here: "),
        ({"modules": ("no_such_package.core",)}, "needs no_such_package.core, not installed here: "),
    ],
)
def test_a_backend_that_is_not_installed_is_one_line(monkeypatch, needs, complaint):
    monkeypatch.setattr(BACKENDS, "_objects", {})
    BACKENDS.register("mine")(BackendSpec(load=print, extra="mine", **needs))
    install = r"pip install 'agentrl-train\[mine\]'"
    with pytest.raises(ConfigError, match=f"^'actor.backend=mine' {complaint}{install}$"):
        check_installed("mine")
    with pytest.raises(ConfigError, match=complaint):
        load_backend(configured(backend="mine"), ModelRequest(ModelConfig(path="m"), ActorConfig()))
    with pytest.raises(ConfigError, match=complaint):
        check_early(configured(backend="mine"))
    check_early(configured(backend="mine"), "rollout")


def test_an_installed_backend_is_accepted(monkeypatch):
    monkeypatch.setattr(BACKENDS, "_objects", {})
    BACKENDS.register("mine")(BackendSpec(load=print, python=(3, 11), modules=("json.decoder",)))
    check_installed("mine")


def test_a_registered_name_is_valid(monkeypatch):
    monkeypatch.setattr(ENGINES, "_objects", {})
    with pytest.raises(ValueError, match="expected"):
        known_engine("mine")
    ENGINES.register("mine")(EngineSpec(load=print, options=frozenset({"dtype"})))
    assert configured(engine="mine").rollout.engine == "mine"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no 'SPEC'"),
        ("SPEC = print", "is not an object of the class"),
        ("raise ValueError('broken')", "broken"),
        (None, "there is no file"),
    ],
)
@pytest.mark.parametrize("key", ["engine", "backend"])
def test_path_without_a_spec_is_a_one_line_error(tmp_path, key, content, complaint):
    file = tmp_path / "own.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        configured(**{key: f"{file}:SPEC"})
    (line,) = str(raised.value).splitlines()
    assert line.startswith({"engine": "'rollout.engine': ", "backend": "'actor.backend': "}[key])
    assert complaint in line


def test_a_saved_run_never_names_code_for_replay(tmp_path):
    (tmp_path / "own.py").write_text(MARKER)
    marks = {key: mark_of(field) for key, field in config_fields()}
    assert {marks[key].use for key in ("rollout.engine", "actor.backend")} == {Use.CODE}
    own = f"{tmp_path}/own.py:SPEC"
    assert trusted_values({"rollout": {"engine": own, "n": 2}, "actor": {"backend": own}}) == {
        "rollout": {"n": 2},
        "actor": {},
    }
    assert trusted_values({"actor": {"backend": "torch"}}) == {"actor": {"backend": "torch"}}
    assert not (tmp_path / "was_run").exists()


def test_no_module_compares_the_name_of_an_engine_or_backend():
    """verl's keys are translated by name, so they are exempt."""
    compared = re.compile(r"\.(engine|backend) (==|!=|in|not in) [\"'({]")
    modules = [path for path in PACKAGE.rglob("*.py") if "verl" not in path.parts]
    assert [str(path) for path in modules if compared.search(path.read_text(encoding="utf-8"))] == []
