"""Errors caused by user input, and suggestions of valid names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class AgentRLError(Exception):
    """An error in user input. The text is one line: what is wrong, where, and what was expected.

    An error about several problems has one such line for each problem. The command line prints the text and exits with
    status 2. Bugs of agentrl are never wrapped in this error.
    """


class Kind(StrEnum):
    """Kind of a problem in the configuration."""

    UNKNOWN_KEY = "unknown_key"
    MISSING = "missing"
    """A key that must be set, always or because of another key's value."""
    WRONG_VALUE = "wrong_value"
    UNUSED = "unused"
    """An option that has no effect."""
    CONFLICT = "conflict"
    NOT_SUPPORTED = "not_supported"
    NOT_FOUND = "not_found"
    """A file, a folder or a name that does not exist."""
    OTHER = "other"


_MENTION = re.compile(r"`([\w.]+)(=[^`]*)?`")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in the configuration.

    Attributes:
        key: the dotted key; "" if the problem has none.
        text: one line, with every key in backticks: `a.b` or `a.b=value`.
    """

    key: str
    kind: Kind
    text: str

    def line(self, shown: Callable[[str], str] = str) -> str:
        """Return the text with quoted keys. `shown` maps a key to the name that the user knows."""
        return _MENTION.sub(lambda mention: f"'{shown(mention[1])}{mention[2] or ''}'", self.text)

    def mentions(self, key: str) -> bool:
        """Whether the problem is about `key` or a key inside it, or mentions such a key in its text."""
        if not self.key:
            return key in self.text  # keys in the text of a keyless problem may have no backticks
        keys = (self.key, *(mention[1] for mention in _MENTION.finditer(self.text)))
        return any(f"{each}.".startswith(f"{key}.") for each in keys)


class ConfigError(AgentRLError):
    """Invalid keys, values or combinations of them.

    They are in the configuration, in arguments, or in a file that the configuration or an argument names.

    An error consists of problems, one per line. `ConfigError.at` creates an error about a key: the problem contains the
    key and the kind. `ConfigError.keyless` creates an error about anything else, for example a command-line argument, a
    file or a Python object. Helpers that do not know the key also raise a keyless error; the caller adds the key.
    """

    def __init__(self, first: Problem, *others: Problem) -> None:
        self.problems = [first, *others]
        super().__init__("\n".join(problem.line() for problem in self.problems))

    @classmethod
    def at(cls, key: str, kind: Kind, text: str) -> ConfigError:
        """Return an error with one problem, which concerns a key."""
        return cls(Problem(key, kind, text))

    @classmethod
    def keyless(cls, first: str, *others: str) -> ConfigError:
        """Return an error with one problem for each text; the problems concern no key."""
        return cls(*(Problem("", Kind.OTHER, text) for text in (first, *others)))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[Problem, ...]]:
        """Keep the problems when the error is pickled, for example by another process."""
        return ConfigError, tuple(self.problems)

    def shown_as(self, shown: Callable[[str], str]) -> ConfigError:
        """Return the error with keys under the names that the user knows; see `Problem.line`."""
        return ConfigError(*(replace(problem, text=problem.line(shown)) for problem in self.problems))


def problems_in(error: AgentRLError) -> list[Problem]:
    """Return the problems of an error, one per line. Only problems of a ConfigError have keys."""
    if isinstance(error, ConfigError):
        return error.problems
    return [Problem("", Kind.OTHER, line) for line in str(error).split("\n")]


def with_place(error: Exception, place: str) -> Exception:
    """Return an error of the same class, with `place` before the text; its problems keep their keys."""
    if isinstance(error, ConfigError):
        first, *others = error.problems
        return ConfigError(replace(first, text=f"{place}: {first.text}"), *others)
    return type(error)(f"{place}: {error}")


class DataError(AgentRLError):
    """An invalid dataset file or row; the text names file, row and field."""


class TemplateError(AgentRLError):
    """A chat template with which turns cannot be appended to a conversation correctly; the text explains why."""


class RewardError(AgentRLError):
    """A reward function that failed or returned no finite number; the text names function, data source and row."""


class UnknownNameError(AgentRLError):
    """A name without a registry entry, module or file; the text suggests valid names."""


def install_command(extra: str) -> str:
    """Return the command that installs an optional dependency group, for error messages."""
    return f"pip install 'agentrl-train[{extra}]'"


_MOST, _SOME = 40, 8
"""If there are at most `_MOST` valid names, all are listed; otherwise, only the first `_SOME`."""


def suggestion(name: str, valid: Iterable[str]) -> str:
    """Return the end of an error message: the nearest valid name if one is close, else a list of the valid names.

    A long list is shortened.
    """
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    if len(names) > _MOST:
        return f"valid: {', '.join(names[:_SOME])} and {len(names) - _SOME} more"
    return f"valid: {', '.join(names)}" if names else "there are none"
