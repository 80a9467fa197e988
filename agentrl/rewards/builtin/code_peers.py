"""Sandbox program with two processes: one runs the tests, the other runs the model's answer.

The tests call functions of the answer. The source text of this file is sent to the sandbox, so it needs only Python 3.8
and the standard library. The answer cannot influence the verdict: the answer's process only receives calls and returns
values as data. The secret `mark`, the tests and the expected values exist only in the test process. Linux denies the
answer access to the memory and files of the test process (PR_SET_DUMPABLE).
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import importlib
import json
import os
import subprocess
import sys
from collections import deque
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, Callable, Iterator  # noqa: UP035  (Python 3.8)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, SIGKILL = 1, 4, 9
# operations that run in the other process; == and < run there only if both operands are there (`Remote._compared`)
OPERATIONS = ["len", "getitem", "setitem", "add", "sub", "mul", "truediv", "floordiv", "mod", "neg"]
OPERATIONS += ["next", "str", "repr"]
BUILT = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque, "Decimal": Decimal, "Fraction": Fraction}
Json = Any  # a JSON value


class Remote:
    """Proxy of an object in the other process.

    `bool(proxy)` is always True. The other process decides whether two proxies are equal.
    """

    _peer: Peer
    _handle: int

    def __init__(self, peer: Peer, handle: int) -> None:
        self.__dict__.update(_peer=peer, _handle=handle)

    def __call__(self, *arguments: object, **keywords: object) -> object:  # noqa: D102  (calls the remote object)
        return self._peer.ask("call", self._handle, *arguments, **keywords)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.ask("getattr", self._handle, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._peer.ask("setattr", self._handle, name, value)

    def __iter__(self) -> Iterator[object]:
        iterator = self._peer.ask("iter", self._handle)
        with suppress(StopIteration):
            while True:
                value = next(iterator)
                yield value

    def __bool__(self) -> bool:
        return True

    def __hash__(self) -> int:
        return self._handle

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and bool(self._peer.ask("isinstance", instance._handle, self))

    def _compared(self, operation: str, other: object) -> object:
        return self._peer.ask(operation, self._handle, other) if isinstance(other, Remote) else NotImplemented

    def __eq__(self, other: object) -> Any:
        return self._compared("eq", other)

    def __lt__(self, other: object) -> Any:
        return self._compared("lt", other)


def _operation(name: str) -> Callable[..., object]:
    return lambda self, *arguments: self._peer.ask(name, self._handle, *arguments)


for each in OPERATIONS:
    setattr(Remote, f"__{each}__", _operation(each))


class Peer:
    """One end of the connection between the two processes.

    `is_served` decides which operations the other process may use on an object.
    """

    def __init__(self, source: int, sink: int, is_served: Callable[[str, object, object], bool]) -> None:
        self._source, self._sink = os.fdopen(source, encoding="utf-8"), os.fdopen(sink, "w", encoding="utf-8")
        self._is_served = is_served
        self._objects: list[object] = []
        self.errors: dict[str, type] = {}

    def ask(self, operation: str, handle: int, *arguments: object, **keywords: object) -> Any:
        """Run an operation in the other process; return its result.

        Changes that the operation makes to lists, dicts and sets among the arguments are copied back.
        """
        given = [self._data(each) for each in arguments]
        self._send({"ask": operation, "of": handle, "with": given, "and": self._data(keywords)})
        while True:
            message = self._receive()
            if "ask" in message:
                self._send(self._answer(message))
            elif "raised" in message:
                raise self._error(message["raised"], message["text"])
            else:
                for mine, theirs in zip(arguments, map(self._value, message["with"])):  # noqa: B905  (Python 3.8)
                    _change(mine, theirs)
                return self._value(message["answer"])

    def serve(self) -> None:
        """Answer requests until the other process has ended."""
        while True:
            self._send(self._answer(self._receive()))

    def _answer(self, message: Json) -> Json:
        try:
            subject = self._objects[message["of"]] if message["of"] >= 0 else None
            arguments, keywords = [self._value(a) for a in message["with"]], self._value(message["and"])
            if not self._is_served(message["ask"], subject, arguments[0] if arguments else None):
                raise TypeError("the tests do not provide this")
            answer = self._do(message["ask"], subject, arguments, keywords)
            return {"answer": self._data(answer), "with": [self._data(a) for a in arguments]}
        except BaseException as error:  # also SystemExit: the other process handles it
            return {"raised": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}

    def _do(self, operation: str, subject: Any, arguments: list[Any], keywords: dict[str, Any]) -> object:
        if operation == "call":
            return subject(*arguments, **keywords)
        if operation in ("getattr", "setattr", "isinstance", "iter", "next", "str", "repr", "len"):
            return getattr(builtins, operation)(subject, *arguments)
        return getattr(importlib.import_module("operator"), operation)(subject, *arguments)

    def _data(self, value: Any) -> Json:
        """Return `value` as JSON.

        None, booleans and strings are unchanged. Numbers, bytes, containers and numpy arrays become [kind, data]. All
        other objects are replaced by their handles.
        """
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return ["int", hex(value)]
        if isinstance(value, (float, complex, Decimal, Fraction)):
            return [type(value).__name__, repr(value) if isinstance(value, float) else str(value)]
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", value.hex()]
        if isinstance(value, dict):
            return ["dict", [[self._data(key), self._data(each)] for key, each in value.items()]]
        for kind in (list, tuple, set, frozenset, deque):
            if isinstance(value, kind):
                return [kind.__name__, [self._data(each) for each in value]]
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            return ["numpy", self._data(value.tolist())]
        if isinstance(value, Remote):
            return ["yours", value._handle]
        self._objects.append(value)
        return ["mine", len(self._objects) - 1]

    def _value(self, data: Json) -> Any:
        if not isinstance(data, list):
            return data
        kind, inside = data
        if kind in ("mine", "yours"):
            return Remote(self, inside) if kind == "mine" else self._objects[inside]
        if kind in ("int", "float", "complex", "bytes"):
            readers: dict[str, Callable[[str], object]] = {"int": lambda text: int(text, 16), "bytes": bytes.fromhex}
            return readers.get(kind, getattr(builtins, kind))(inside)
        if kind in ("Decimal", "Fraction"):
            return BUILT[kind](inside)
        if kind == "numpy":
            numpy = sys.modules.get("numpy")
            return self._value(inside) if numpy is None else numpy.array(self._value(inside))
        if kind == "dict":
            return {self._value(key): self._value(each) for key, each in inside}
        values = [self._value(each) for each in inside]
        return values if kind == "list" else BUILT[kind](values)

    def _error(self, kinds: list[str], text: str) -> BaseException:
        for kind in kinds:
            found = self.errors.get(kind) or getattr(builtins, kind, None)
            if isinstance(found, type) and issubclass(found, Exception):
                return found(text)
        return RuntimeError(text)

    def _send(self, message: Json) -> None:
        print(json.dumps(message), file=self._sink, flush=True)

    def _receive(self) -> Json:
        line = self._source.readline()
        if not line:
            raise EOFError("the other process has ended")
        return json.loads(line)


def _change(mine: Any, theirs: Any) -> None:
    if type(mine) is not type(theirs) or type(mine) not in (list, dict, set):
        return
    if isinstance(mine, list):
        mine[:] = theirs
    else:
        mine.clear()
        mine.update(theirs)


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl; do nothing on other systems."""
    with suppress(Exception):
        ctypes.CDLL(None).prctl(option, value)


def answer_process() -> None:
    """Run the answer, then execute the requests of the tests."""
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    peer = Peer(os.dup(0), os.dup(1), lambda *_: True)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    names: dict[str, object] = {"__name__": "solution"}
    exec(compile(peer._receive(), "solution.py", "exec"), names)
    found = {name: _kind(value) for name, value in names.items() if not name.startswith("__")}
    peer._objects.append(names.__getitem__)
    peer._send(found)
    peer.serve()


def _kind(value: object) -> str:
    if isinstance(value, type(sys)):
        return "module"
    return "error" if isinstance(value, type) and issubclass(value, BaseException) else "object"


def tests_process(job: Json) -> None:
    """Run the tests, then print the mark if none failed."""
    prctl(PR_SET_DUMPABLE, 0)
    tests = ast.parse(job["tests"])
    sys.modules["__main__"] = module = type(sys)("__main__")
    names: dict[str, Any] = module.__dict__
    exec(job["prelude"], names)
    if any(word in job["tests"] for word in ("numpy", "np.")):
        with suppress(ImportError):
            names["np"] = names["numpy"] = importlib.import_module("numpy")
    answer = subprocess.Popen(
        [sys.executable, "-c", job["source"] + "\nanswer_process()\n"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert answer.stdout is not None
    assert answer.stdin is not None
    peer = Peer(os.dup(answer.stdout.fileno()), os.dup(answer.stdin.fileno()), _offered)
    peer._send(job["code"])
    _define(peer, peer._receive(), tests, names)
    here = os.path.dirname(os.path.abspath(sys.argv[0]))  # noqa: PTH100, PTH120  (the answer may write modules there)
    sys.path[:] = [path for path in sys.path if path not in ("", here)]
    exec(compile(tests, "tests.py", "exec"), names)
    answer.kill()
    print("\n" + job["mark"], flush=True)
    os._exit(0)


def _offered(operation: str, subject: object, name: object) -> bool:
    """Whether the answer may use `operation` on an object of the tests.

    Calls, iteration, `len` and indexing are allowed. Public attributes are allowed only for instances of classes that
    the tests define.
    """
    if operation in ("getattr", "setattr"):
        return type(subject).__module__ == "__main__" and not str(name).startswith("_")
    return operation in ("call", "iter", "next", "len", "getitem")


def _define(peer: Peer, found: Json, tests: ast.AST, names: dict[str, Any]) -> None:
    """Add to `names` the answer's objects that the tests use.

    If the answer redefines a known name such as `sorted`, the redefinition is used only if the tests use no other
    object of the answer.
    """
    wanted = {node.id for node in ast.walk(tests) if isinstance(node, ast.Name)}
    known = {*names, *dir(builtins)}
    others = {name for name, kind in found.items() if kind == "object" and name in wanted - known}
    modules = getattr(sys, "stdlib_module_names", known)
    for name, kind in found.items():
        if name not in wanted or (name in known and (others or kind != "object")):
            continue
        if kind == "error":
            names[name] = peer.errors[name] = type(name, (Exception,), {})
        elif kind == "module" and name in modules:
            with suppress(ImportError):
                names[name] = importlib.import_module(name)
        else:
            names[name] = peer.ask("call", 0, name)


def main() -> None:
    """Entry point in the sandbox."""
    tests_process(json.loads(sys.stdin.read()))
