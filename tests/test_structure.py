"""The house keeps its floors: what may import what, what stays light, what ships (docs/design.md, section 2)."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agentrl"
MODULES = sorted(PACKAGE.rglob("*.py"))

WORDS = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__", "api"}
FLOORS = [
    {*WORDS, "config", "offload", "telemetry"},
    {"algos", "audit", "chat", "data", "estimates", "models"},
    {"engines", "tools", "interactions", "rewards", "backends", "store"},
    {"agent_loops", "weights", "compat"},
    {"rollouts"},  # runs agent loops
    {"cluster"},
    {"trainer"},
    {"replay"},  # the viewer opens runs as it does
    {"viewer"},
    {"api", "cli"},
    {"__main__"},
]
DOORS = {f"agentrl.trainer.main_{name}" for name in ("ppo", "generation", "generation_server", "eval")}  # verl's names
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
HEAVY = {"torch", "transformers", "numpy", "pyarrow", "datasets", "hydra", "omegaconf", "tensorboard", "pandas"}
OPTIONAL = {
    "sglang",
    "megatron",
    "ray",
    "e2b_code_interpreter",
    "mcp",
    "wandb",
    "mlflow",
    "trackio",
    "peft",
    "datasets",
    "verl",
}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def part(module: str) -> str:
    """The floor's word for a module: agentrl.tools.function -> tools."""
    return "cli" if module in DOORS else module.split(".")[1]


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module named in an import; `from package import name` may mean `package.name`, so both are given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def edges() -> Iterator[tuple[str, str]]:
    """(module, module it imports), inside agentrl."""
    for path in set(MODULES) - {PACKAGE / "__init__.py"}:  # it offers the Python door, and loads it when asked
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            if name.startswith("agentrl."):
                yield dotted(path), name


def test_every_part_has_a_floor():
    parts = {part(dotted(path)) for path in MODULES if path.parent != PACKAGE or path.stem != "__init__"}
    assert parts - FLOOR.keys() == set()


def test_imports_only_go_down():
    upward = [f"{source} -> {target}" for source, target in edges() if FLOOR[part(target)] > FLOOR[part(source)]]
    assert upward == []


def test_packages_on_one_floor_meet_only_through_base():
    """Floor 0 is made of words, most of them single modules; from floor 1 on it is packages."""
    beside = [
        f"{source} -> {target}"
        for source, target in edges()
        if FLOOR[part(target)] == FLOOR[part(source)] > 0
        and part(target) != part(source)
        and target.split(".")[2:3] != ["base"]
    ]
    assert beside == []


def test_the_audit_shares_nothing_with_what_it_audits():
    shared = [f"{source} -> {target}" for source, target in edges() if part(source) == "audit" != part(target)]
    assert shared == []
    assert any(part(source) == "audit" for source, _ in edges())


def test_optional_libraries_are_imported_only_inside_functions_or_leaves():
    """A module that needs one at its top may itself be imported only inside functions."""
    tops = {dotted(path): set(imported(top_level(path))) for path in MODULES}
    needy = {module for module, names in tops.items() if {name.split(".")[0] for name in names} & OPTIONAL}
    users = [
        f"{module} -> {name}"
        for module, names in tops.items()
        for name in names
        if name in needy or name.rpartition(".")[0] in needy
    ]
    assert users == []


def top_level(path: Path) -> ast.Module:
    """The module without what runs only in functions or only for the type checker."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None: ...

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None: ...

        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    tree = Strip().visit(ast.parse(path.read_text(encoding="utf-8")))
    assert isinstance(tree, ast.Module)
    return tree


def test_words_configuration_and_command_line_load_nothing_heavy():
    words = [f"agentrl.{name}" for name in sorted(FLOORS[0])]
    joints = [dotted(path) for path in MODULES if path.name == "base.py"]
    code = f"import sys, {', '.join(['agentrl', 'agentrl.cli.main', *words, *joints])}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "agentrl.trajectory" in loaded  # the probe sees what was loaded
    assert {name.split(".")[0] for name in loaded} & (HEAVY | OPTIONAL) == set()


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_modules_say_what_they_are_and_fit_in_the_head(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no docstring"
    assert len(text.splitlines()) <= 320


def test_the_median_function_is_under_ten_lines():
    functions = [
        node
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.median((node.end_lineno or 0) - node.lineno + 1 for node in functions) < 10


def test_the_version_of_the_changelog_is_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_wheel_brings_configs_types_and_license(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--quiet", "--wheel-dir", str(tmp_path)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("agentrl-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    configs = {f"agentrl/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*") if path.is_file()}
    assert configs
    assert configs <= names
    assert {f"{path.relative_to(ROOT)}" for path in MODULES} <= names
    assert {str(path.relative_to(ROOT)) for path in (PACKAGE / "viewer/static").iterdir()} <= names
    assert "agentrl/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "examples")) for name in names)
