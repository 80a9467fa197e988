"""Source files that tests read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path


@cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a file.

    Before Python 3.11.9, parsing fails if a finalizer or another thread formats a traceback at the same time
    (https://github.com/python/cpython/issues/106905); then it is parsed again.
    """
    text = path.read_text(encoding="utf-8")
    for _ in range(3):
        try:
            return ast.parse(text)
        except SystemError:
            continue
    return ast.parse(text)


def statements(tree: ast.AST, skip: Callable[[ast.AST], bool] = lambda _: False) -> Iterator[ast.AST]:
    """The statements of a module at any depth, without those that `skip` selects."""
    left = [tree]
    while left:
        yield (node := left.pop())
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += [each for each in getattr(node, block, ()) if not skip(each)]
