"""From a name to an object: a registered name, `pkg.module:Name`, `path/to/file.py:Name`, or an entry point."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from agentrl.blame import told
from agentrl.errors import AgentRLError, ConfigError, UnknownNameError, suggestion

T = TypeVar("T")


class Registry(Generic[T]):
    """Names of one kind of part.

    Args:
        kind: what is registered, for error messages ("agent loop").
        builtin: name -> "pkg.module:Name", imported only when asked for, so that a listing stays cheap.
        aliases: another name -> a name.
        families: a prefix, such as "sglang/" -> "pkg.module:function", which answers for what follows the prefix.

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
        """Decorator: `name` means this object from now on (a later registration wins, as on re-import)."""

        def keep(item: T) -> T:
            self._objects[name] = item
            return item

        return keep

    def names(self) -> list[str]:
        """Every name `get` answers to, aliases left out."""
        return sorted({*self._objects, *self._lazy, *self._entry_points()})

    def is_builtin(self, name: str) -> bool:
        """Whether `name` means what agentrl itself brings: nothing registered, installed or imported by its path."""
        if name in self._objects:
            return False
        return self._aliases.get(name, name) in self._lazy or self._family(name) is not None

    def get(self, name: str) -> T:
        """The object called `name`.

        Raises:
            UnknownNameError: nothing answers to it; the text names the nearest valid name.
        """
        # a registered name wins over an alias: a user's own "tool" is theirs
        if name not in self._objects:
            name = self._aliases.get(name, name)
        if name in self._objects:
            return self._objects[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> T:
        if name in self._lazy:
            return load_object(self._lazy[name])  # type: ignore[no-any-return]  # typed by whoever listed it
        if name in (found := self._entry_points()):
            return load_object(found[name])  # type: ignore[no-any-return]  # typed by whoever published it
        if prefix := self._family(name):
            find = load_object(self._families[prefix])
            return find(name.removeprefix(prefix))  # type: ignore[no-any-return]  # typed by whoever listed it
        if ":" in name or "." in name:
            return load_object(name)  # type: ignore[no-any-return]  # typed by the user who names it
        valid = [*self.names(), *self._aliases, *(f"{prefix}NAME" for prefix in self._families)]
        raise UnknownNameError(f"unknown {self.kind} '{name}': {suggestion(name, valid)}")

    def _family(self, name: str) -> str | None:
        """The prefix of the family that answers for `name`; None for the path of an object, whatever it begins with."""
        if ":" in name or "." in name:
            return None
        return next(filter(name.startswith, self._families), None)

    def _entry_points(self) -> dict[str, str]:
        group = f"agentrl.{self.kind.replace(' ', '_')}s"
        return {point.name: point.value for point in entry_points(group=group)}


def load_object(target: str):  # type: ignore[no-untyped-def]  # any object at all: the caller knows its type
    """Import `pkg.module:Name`, `pkg.module.Name` or `path/to/file.py:Name`.

    Raises:
        UnknownNameError: the file, module or attribute is not there, or importing it failed; says which.
    """
    if target.endswith(".py"):
        raise UnknownNameError(f"'{target}' names a file and nothing in it: write '{target}:Name'")
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
    """Import `pkg.module` or `path/to/file.py`.

    Raises:
        UnknownNameError: it is not there, or running it failed; says in which line of the user's.
        ConfigError: what it declares to agentrl cannot be used.
    """
    try:
        return load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except UnknownNameError:
        raise
    except AgentRLError as error:  # what a file says to us as it is run, such as `@tool`
        raise ConfigError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:  # a script that ends itself must not end the program without a word
        raise UnknownNameError(f"cannot import '{where}': {told(error)}") from error


def load_file(path: Path) -> ModuleType:
    """Import a Python file by its path, once: a second call answers the same module."""
    path = path.resolve()
    name = f"agentrl_user_{path.stem}_{abs(hash(str(path))):x}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise UnknownNameError(f"there is no file '{path}'")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a path that ends in .py always has a spec and a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before running it: dataclasses and pydantic look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
