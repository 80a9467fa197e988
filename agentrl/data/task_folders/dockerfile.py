"""Reads Dockerfiles that contain only copies, variables and simple commands.

A sandbox that cannot use container images can apply such a Dockerfile too.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from posixpath import join, normpath

_BASES = re.compile(r"(docker\.io/)?(library/)?(debian|ubuntu|python|buildpack-deps)(:[\w.-]+)?")
_NO_EFFECT = frozenset({"EXPOSE", "LABEL", "MAINTAINER", "CMD", "STOPSIGNAL"})
"""Instructions that do not affect files, variables or the working folder."""
_COMMANDS = frozenset({"mkdir", "touch", "chmod", "cp", "mv", "ln", "echo", "printf", "rm", "cat", "cd", "true", "set"})
"""Commands allowed in a RUN line: they need neither the network nor special privileges."""
_ARCHIVE = re.compile(r"\.(tar|tar\.\w+|tgz|tbz2|txz)$")
_ROOTS = frozenset({"root", "0", "root:root", "0:0"})
_SEPARATORS = frozenset({"&&", "||", ";", "|", "&"})


@dataclass(frozen=True, slots=True)
class Copy:
    """A COPY or ADD line, which copies files of `environment/` to a path in the sandbox.

    Attributes:
        to: absolute path in the sandbox; a final slash means that the path is a folder.
        mode: access rights of the copies; None: each copy has the access rights of its source.
    """

    sources: tuple[str, ...]
    to: str
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A RUN line: a shell command, its working folder and its variables."""

    command: str
    folder: str
    env: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Recipe:
    """The steps and settings of a Dockerfile.

    Attributes:
        folder: the working folder after the last line.
        steps: copies and commands, in the order of the lines.
        folders: all working folders that WORKDIR lines set.
        mentioned: absolute paths in RUN lines.
        problems: lines that only a container image can apply. If there are any, the other attributes are incomplete.
    """

    folder: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    steps: list[Copy | Run] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    mentioned: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_dockerfile(text: str) -> Recipe:
    """Read a Dockerfile. Supported are FROM, COPY, ADD, WORKDIR, ENV, USER root, and RUN with simple commands.

    Lines that do not affect files or commands, such as EXPOSE, are ignored. Any other line becomes a problem.
    """
    recipe, num_images = Recipe(), 0
    for number, word, rest in _instructions(text):
        num_images += word == "FROM"
        try:
            if num_images > 1:
                raise ValueError("builds with several stages need an image")
            if not num_images:
                raise ValueError("lines before FROM are not supported")
            _apply(recipe, word, rest)
        except ValueError as error:
            recipe.problems.append(f"line {number}: {word}: {error}")
    if not num_images:
        recipe.problems.append("it has no FROM")
    return recipe


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, instruction, rest of the line). Continued lines are joined, comments are left out."""
    whole, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not whole and not line.strip()):
            continue
        first = first if whole else number
        whole += line.rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        yield from _instruction(first, whole)
        whole = ""
    if whole.strip():
        yield from _instruction(first, whole)


def _instruction(number: int, line: str) -> Iterator[tuple[int, str, str]]:
    word, _, rest = line.strip().partition(" ")
    yield number, word.upper(), rest.strip()


def _apply(recipe: Recipe, word: str, rest: str) -> None:
    if word in _NO_EFFECT:
        return
    if word not in _DONE_BY:
        raise ValueError("needs an image")
    _DONE_BY[word](recipe, rest)


def _from(recipe: Recipe, rest: str) -> None:
    words = [each for each in rest.split() if not each.startswith("--platform=")]
    if len(words) not in (1, 3) or not _BASES.fullmatch(words[0]):
        raise ValueError(f"'{rest}' is not debian, ubuntu, python or buildpack-deps")


def _workdir(recipe: Recipe, rest: str) -> None:
    (path,) = _words(rest, 1, 1)
    recipe.folder = _absolute(recipe, path)
    recipe.folders.append(recipe.folder)


def _absolute(recipe: Recipe, path: str) -> str:
    return normpath(f"/{join(recipe.folder, path).lstrip('/')}")


def _env(recipe: Recipe, rest: str) -> None:
    words = _words(rest, 1)
    if "=" not in words[0] and len(words) > 1:  # the old form ENV NAME VALUE
        words = [f"{words[0]}={rest.partition(' ')[2].strip()}"]
    for each in words:
        name, equals, value = each.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"'{each}' is not NAME=VALUE")
        recipe.env[name] = value


def _copy(recipe: Recipe, rest: str) -> None:
    mode = None
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        name, _, value = option.partition("=")
        if name == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
            mode = int(value, 8)
        elif name != "--chown":  # --chown has no effect: all files belong to the user of the sandbox
            raise ValueError(f"'{option}' needs an image")
        rest = rest.strip()
    words = _listed(rest) if rest.startswith("[") else _words(rest, 2)
    *sources, to = words
    if any(re.match(r"\w+://|git@", each) for each in sources):
        raise ValueError("downloads need an image")
    path = _absolute(recipe, to)
    is_folder = (
        to.endswith("/") or len(sources) > 1 or any(f"{each}/".startswith(f"{path}/") for each in recipe.folders)
    )
    recipe.steps.append(Copy(tuple(sources), path + "/" * (is_folder and path != "/"), mode))


def _add(recipe: Recipe, rest: str) -> None:
    _copy(recipe, rest)
    step = recipe.steps[-1]
    if isinstance(step, Copy) and any(map(_ARCHIVE.search, step.sources)):
        recipe.steps.pop()
        raise ValueError("unpacking archives needs an image")


def _run(recipe: Recipe, rest: str) -> None:
    if rest.startswith(("--", "[")) or "<<" in rest:
        raise ValueError("only a plain shell command is supported")
    words = list(shlex.shlex(rest, posix=True, punctuation_chars=True))
    if any(each in rest for each in ("$(", "`", "<(")):
        raise ValueError("command substitution needs an image")
    starts = [word for place, word in enumerate(words) if place == 0 or words[place - 1] in _SEPARATORS]
    if wrong := [word for word in starts if word not in _COMMANDS]:
        raise ValueError(f"'{wrong[0]}' needs an image (allowed without an image: {', '.join(sorted(_COMMANDS))})")
    recipe.steps.append(Run(rest, recipe.folder, tuple(recipe.env.items())))
    recipe.mentioned += [normpath(word) for word in words if word.startswith("/")]


def _user(recipe: Recipe, rest: str) -> None:
    if rest not in _ROOTS:
        raise ValueError(f"a user other than root ('{rest}') needs an image")


def _words(rest: str, least: int, most: int | None = None) -> list[str]:
    if "$" in rest:
        raise ValueError("variables ($) need an image")
    words = shlex.split(rest)
    if len(words) < least or (most is not None and len(words) > most):
        raise ValueError(f"cannot be read: '{rest}'")
    return words


def _listed(rest: str) -> list[str]:
    words = json.loads(rest)
    if not isinstance(words, list) or len(words) < 2 or not all(isinstance(each, str) for each in words):
        raise ValueError(f"cannot be read: '{rest}'")
    return words


_DONE_BY = {"FROM": _from, "WORKDIR": _workdir, "ENV": _env, "COPY": _copy, "ADD": _add, "RUN": _run, "USER": _user}
