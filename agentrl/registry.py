"""Lookup of objects by name: a registered name, `pkg.module:Name`, `path/to/file.py:Name`, or an entry point."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from agentrl.errors import AgentRLError, ConfigError, UnknownNameError, suggestion
from agentrl.utils.user_code import format_error
from agentrl.utils.verl_classes import IMPORTS

T = TypeVar("T")

_STANDARD = {
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
    os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload"),  # noqa: PTH118  # as sys.path spells it
    os.path.join(sys.base_prefix, sys.platlibdir, f"python{sys.version_info[0]}{sys.version_info[1]}.zip"),  # noqa: PTH118
}
"""Folders of the standard library."""


_PREFIX = "agentrl_user_"


class Registry(Generic[T]):
    """Finds the objects of one kind of component by name.

    Args:
        kind: kind of the registered objects, for error messages ("agent loop").
        builtin: name -> "pkg.module:Name", imported lazily, so that listing names is fast.
        aliases: alias -> name.
        families: prefix, such as "sglang/" -> "pkg.module:function". The function finds an object by the name after the
            prefix.

    Entry points are read from the group `agentrl.<kind with underscores>s` ("agentrl.agent_loops").
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        families: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._lazy = dict(builtin or {})
        self._aliases = dict(aliases or {})
        self._families = dict(families or {})
        self._objects: dict[str, T] = {}
        self._loaded: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers an object as `name`; a later registration replaces an earlier one."""

        def keep(item: T) -> T:
            self._objects[name] = item
            return item

        return keep

    def names(self) -> list[str]:
        """Return all names for `get`, without aliases and families."""
        return sorted({*self._objects, *self._lazy, *self._entry_points()})

    def builtins(self) -> list[str]:
        """Return the names of agentrl's own objects."""
        return sorted(self._lazy)

    def is_builtin(self, name: str) -> bool:
        """Whether `name` names an object of agentrl; false for registered and installed objects and import paths."""
        if name in self._objects or name in _GIVEN:
            return False
        return self._aliases.get(name, name) in self._lazy or self._family(name) is not None

    def is_path(self, name: str) -> bool:
        """Whether `name` is an import path, and not the name of a built-in, registered, passed or installed object."""
        if ":" not in name and "." not in name:
            return False
        known = name in _GIVEN or name in self._objects or name in self._entry_points()
        return not known and not self.is_builtin(name)

    def get(self, name: str) -> T:
        """Return the object called `name`.

        Raises:
            UnknownNameError: the name is unknown, or the import failed; the text suggests valid names or says why.
            ConfigError: see `load_module`.
        """
        if name in _GIVEN:
            return _GIVEN[name]  # type: ignore[return-value]  # typed by the user who passed it
        # registered names have priority, so that users can register a name that is also an alias
        if name not in self._objects:
            name = self._aliases.get(name, name)
        if name in self._objects:
            return self._objects[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def check(self, name: str) -> None:
        """Reject an unknown name without loading anything.

        For an import path, only the existence of a `.py` file is checked.

        Raises:
            UnknownNameError: the name is unknown; the text suggests valid names, or names the missing file.
        """
        if {".", ":"} & set(name):
            file = name.rpartition(":")[0]
            if file.endswith(".py") and not Path(file).is_file():
                raise UnknownNameError(f"there is no file '{file}'")
        elif name not in (*self.names(), *self._aliases) and not self._family(name):
            raise self._unknown(name)

    def _load(self, name: str) -> T:
        if name in self._lazy:
            return load_object(self._lazy[name])  # type: ignore[no-any-return]  # typed in its module
        if name in (found := self._entry_points()):
            return load_object(found[name])  # type: ignore[no-any-return]  # typed by its package
        if prefix := self._family(name):
            find = load_object(self._families[prefix])
            return find(name.removeprefix(prefix))  # type: ignore[no-any-return]  # typed by the family
        if ":" in name or "." in name:
            return load_object(name)  # type: ignore[no-any-return]  # typed by the user
        raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownNameError:
        valid = [*self.names(), *self._aliases, *(f"{prefix}NAME" for prefix in self._families)]
        return UnknownNameError(f"unknown {self.kind} '{name}': {suggestion(name, valid)}")

    def _family(self, name: str) -> str | None:
        """Return the prefix of the family of `name`; None if there is none, or if `name` is an import path."""
        if ":" in name or "." in name:
            return None
        return next(filter(name.startswith, self._families), None)

    def _entry_points(self) -> dict[str, str]:
        group = f"agentrl.{self.kind.replace(' ', '_')}s"
        return _installed(group)


@cache  # reading the metadata of all installed packages takes tens of milliseconds
def _installed(group: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=group)}


_GIVEN: dict[str, object] = {}
"""Objects that were passed from Python instead of a name. The keys are the names that `give` generated."""


def give(item: object) -> str:
    """Register `item` under a generated name in this process; return the name (`module:qualified name` if possible)."""
    named = item if hasattr(item, "__qualname__") else getattr(item, "func", type(item))  # `func` of a partial
    name = f"{getattr(named, '__module__', None) or '__main__'}:{getattr(named, '__qualname__', 'object')}"
    _GIVEN[name] = item
    return name


def load_object(target: str):  # type: ignore[no-untyped-def]  # any object: the caller knows its type
    """Import `pkg.module:Name`, `pkg.module.Name` or `path/to/file.py:Name`.

    Raises:
        UnknownNameError: the file, module or attribute does not exist, or the import failed; the message says why.
    """
    if target in _GIVEN:
        return _GIVEN[target]
    if target.startswith("__main__:") or "<locals>" in target:
        raise UnknownNameError(
            f"'{target}' is an object that was passed from Python: start the run from Python again, with this object"
        )
    if target.endswith(".py"):
        raise UnknownNameError(f"'{target}' names only a file: add the object's name, '{target}:Name'")
    where, separator, attribute = target.rpartition(":")
    if not separator:
        where, _, attribute = target.rpartition(".")
    if not where:
        raise UnknownNameError(f"'{target}' is not 'pkg.module:Name' or 'path/to/file.py:Name'")
    module = load_module(where)
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise UnknownNameError(f"'{where}' has no '{attribute}': {suggestion(attribute, public)}")
    return getattr(module, attribute)


def load_module(where: str) -> ModuleType:
    """Import `pkg.module` or `path/to/file.py`. The working folder or the file's folder is added to `sys.path`.

    Raises:
        UnknownNameError: the module does not exist, or its code failed; the message contains the line of user code.
        ConfigError: the module registers something invalid with agentrl, for example with `@tool`.
    """
    try:
        if where.endswith(".py"):
            return load_file(Path(where))
        make_importable(Path())
        return importlib.import_module(where)
    except UnknownNameError:
        raise
    except AgentRLError as error:  # raised by agentrl while the file runs, such as by `@tool`
        raise ConfigError.keyless(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:  # a script that exits must not end the program silently
        hint = f": {IMPORTS}" if isinstance(error, ModuleNotFoundError) and error.name == "verl" else ""
        raise UnknownNameError(f"cannot import '{where}': {format_error(error)}{hint}") from error


def make_importable(folder: Path) -> None:
    """Append `folder` to `sys.path`: its modules become importable, but never shadow a library."""
    name = str(folder.resolve())
    _FOLDERS.add(name)
    if name not in sys.path:
        sys.path.append(name)


_FOLDERS: set[str] = set()
"""Folders passed to `make_importable`."""


def child_path() -> str:
    """Return `PYTHONPATH` for a child process: this process's import folders, standard library first."""
    folders = [folder for folder in dict.fromkeys(sys.path) if folder]
    return os.pathsep.join(sorted(folders, key=lambda folder: folder not in _STANDARD))


def load_file(path: Path) -> ModuleType:
    """Import a Python file by its path, once: a second call returns the same module.

    If `import NAME` finds the same file, the file is imported as module NAME, so that `import NAME` elsewhere returns
    the same module.
    """
    path = path.resolve()
    make_importable(path.parent)
    if _found_by_name(path):
        if path.stem not in sys.modules:
            _check_neighbours(path)
        return importlib.import_module(path.stem)
    name = f"{_PREFIX}{path.stem}_{abs(hash(str(path))):x}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise UnknownNameError(f"there is no file '{path}'")
    _check_neighbours(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a path that ends in .py always has a spec and a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # registered before it runs, because dataclasses and pydantic look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def user_file(module: str) -> str | None:
    """Return the file of a module that `load_file` imported under a unique name; None for other modules."""
    return sys.modules[module].__file__ if module.startswith(_PREFIX) else None


def _found_by_name(path: Path) -> bool:
    return path.stem.isidentifier() and _origin(path.stem) == str(path)


def _origin(name: str) -> str | None:
    """Return the file that `import name` imports; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a specification, such as `__main__`
        return None
    return None if spec is None else spec.origin


def _check_neighbours(path: Path) -> None:
    """Refuse a file that imports a file of its own folder, if Python would import another folder's file instead.

    Raises:
        UnknownNameError: the message names both files.
    """
    for name in _imported_names(path):
        beside = [str(path.with_name(f"{name}.py")), str(path.parent / name / "__init__.py")]
        found = _origin(name) if any(map(os.path.isfile, beside)) else None
        # if a library has this name, too, the file is assumed to import the library
        if found is not None and found not in beside and str(Path(found).parent.resolve()) in _FOLDERS:
            raise UnknownNameError(
                f"'{path}' imports '{name}', which is '{found}' in this process: rename one of the two files"
            )


def _imported_names(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # importing the file reports the error
        return set()
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}
