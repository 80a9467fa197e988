"""Package structure: layers, import cycles, sizes, and imports of heavy libraries (docs/design.md, section 2)."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from source_files import statements, syntax

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agentrl"
MODULES = sorted(PACKAGE.rglob("*.py"))

ROOT_MODULES = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__", "api"}
LAYERS = [
    {*ROOT_MODULES, "concurrency", "config", "security", "telemetry", "types", "utils"},
    {"algos", "audit", "chat", "data", "models", "stats"},
    {"sandboxes"},  # tools and rewards run code in them
    {"task_folders"},  # runs tasks of Harbor's format in sandboxes
    {"engines", "tools", "interactions", "rewards", "backends", "store"},
    {"agent_loops", "weights", "compat"},
    {"gateway"},  # conversations that another program leads
    {"harness"},  # agent loops that are programs
    {"rollouts"},  # runs agent loops
    {"run_folder"},
    {"reporting"},
    {"cluster"},
    {"trainer"},
    {"replay"},  # the viewer opens runs in the same way
    {"viewer"},
    {"saved"},  # runs in Python: summaries as in the viewer
    {"plan"},  # predictions before a run starts
    {"api", "cli"},
    {"__main__"},
]
VERL_COMMANDS = {f"agentrl.trainer.main_{name}" for name in ("ppo", "generation", "generation_server", "eval")}
MOST_MODULES = 20
MOST_LINES = 320
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
HEAVY = {
    "torch",
    "transformers",
    "numpy",
    "scipy",
    "pyarrow",
    "datasets",
    "hydra",
    "omegaconf",
    "tensorboard",
    "pandas",
}
OPTIONAL = {
    "sglang",
    "megatron",
    "ray",
    "e2b_code_interpreter",
    "mcp",
    "bm25s",
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
    """The package of a module, or the module's own name: agentrl.tools.function -> tools."""
    return "cli" if module in VERL_COMMANDS else module.split(".")[1]


def type_checking(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING: ...`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def lazy(node: ast.AST) -> bool:
    """Whether a statement does not run when its module is imported."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or type_checking(node)


def imported(tree: ast.AST, skip: Callable[[ast.AST], bool] = lambda _: False) -> Iterator[str]:
    """Every module named in an import; `from package import name` may import `package.name`, so both count."""
    for node in statements(tree, skip):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def edges() -> list[tuple[str, str]]:
    """(module, imported module) for all imports inside agentrl."""
    return [
        (dotted(path), name)
        for path in set(MODULES) - {PACKAGE / "__init__.py"}  # __init__ imports the Python API lazily
        for name in imported(syntax(path))
        if name.startswith("agentrl.")
    ]


def test_every_package_has_a_layer():
    parts = {part(dotted(path)) for path in MODULES if path.parent != PACKAGE or path.stem != "__init__"}
    assert parts - LAYER.keys() == set()


def test_imports_only_go_down():
    upward = [f"{source} -> {target}" for source, target in edges() if LAYER[part(target)] > LAYER[part(source)]]
    assert upward == []


def test_packages_of_one_layer_meet_only_through_base():
    """The base layer is left out: its packages import each other."""
    beside = [
        f"{source} -> {target}"
        for source, target in edges()
        if LAYER[part(target)] == LAYER[part(source)] > 0
        and part(target) != part(source)
        and target.split(".")[2:3] != ["base"]
    ]
    assert beside == []


def test_no_module_imports_itself_through_others():
    """Lazy imports count; imports for type checking only do not."""
    graph: dict[str, set[str]] = {dotted(path): set() for path in MODULES}
    for path in set(MODULES) - {PACKAGE / "__init__.py"}:
        module = dotted(path)
        named = {found for name in imported(syntax(path), type_checking) for found in (name, name.rpartition(".")[0])}
        graph[module] = {name for name in named & graph.keys() if not f"{module}.".startswith(f"{name}.")}
    assert in_cycles(graph) == []


def in_cycles(graph: dict[str, set[str]]) -> list[str]:
    """Modules in import cycles, and modules that import one of them."""
    left = dict(graph)
    while done := {module for module, names in left.items() if not names & left.keys()}:
        left = {module: names for module, names in left.items() if module not in done}
    return sorted(left)


def test_a_cycle_is_found():
    assert in_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set(), "e": {"d"}}) == ["a", "b", "c"]


def test_each_folder_is_a_package_of_at_most_twenty_modules():
    folders = {path.parent for path in MODULES}
    num_modules = Counter(path.parent for path in MODULES if path.stem != "__init__")
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()
    assert {folder: number for folder, number in num_modules.items() if number > MOST_MODULES} == {}


def test_the_audit_shares_nothing_with_what_it_audits():
    shared = [f"{source} -> {target}" for source, target in edges() if part(source) == "audit" != part(target)]
    assert shared == []
    assert any(part(source) == "audit" for source, _ in edges())


def uses(names: set[str], modules: set[str]) -> set[str]:
    return {name for name in names if name in modules or name.rpartition(".")[0] in modules}


def test_optional_libraries_are_imported_only_inside_functions_or_leaves():
    """A module that imports an optional library at its top may itself only be imported inside functions.

    Modules of `cluster` may import each other: those that need Ray are used together. So may those of
    `backends.megatron`, `sandboxes.e2b` and `tools.mcp`.
    """
    tops = {dotted(path): set(imported(syntax(path), lazy)) for path in MODULES}
    needy = {module for module, names in tops.items() if {name.split(".")[0] for name in names} & OPTIONAL}
    together = ("agentrl.cluster.", "agentrl.backends.megatron.", "agentrl.sandboxes.e2b.", "agentrl.tools.mcp.")
    cluster = {module for module in tops if module.startswith(together)}
    while more := {module for module in cluster - needy if uses(tops[module], needy)}:
        needy |= more
    users = [f"{module} -> {name}" for module in tops.keys() - needy for name in uses(tops[module], needy)]
    users += [module for module in needy - cluster if uses(tops[module], needy)]
    assert users == []


def test_words_configuration_and_command_line_load_nothing_heavy():
    words = [f"agentrl.{name}" for name in sorted(LAYERS[0])]
    joints = [dotted(path) for path in MODULES if path.name == "base.py"]
    code = f"import sys, {', '.join(['agentrl', 'agentrl.cli.main', *words, *joints])}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "agentrl.types.trajectory" in loaded  # the probe does see loaded modules
    assert {name.split(".")[0] for name in loaded} & (HEAVY | OPTIONAL) == set()


def test_modules_have_docstrings_and_limited_length():
    num_lines = {dotted(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert [dotted(path) for path in MODULES if not ast.get_docstring(syntax(path))] == []
    assert {module: number for module, number in num_lines.items() if number > MOST_LINES} == {}


def test_the_median_function_is_under_ten_lines():
    functions = [
        node
        for path in MODULES
        for node in statements(syntax(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.median((node.end_lineno or 0) - node.lineno + 1 for node in functions) < 10


def test_the_version_of_the_changelog_is_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
