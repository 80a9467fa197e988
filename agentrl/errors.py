"""Errors caused by user input, and suggestions of valid names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AgentRLError(Exception):
    """An error in user input. The text is one line: what is wrong, where, and what was expected.

    The command line prints that line and exits with status 2. Bugs of agentrl are never wrapped in this error.
    """


class ConfigError(AgentRLError):
    """An invalid key, value or combination in the configuration."""


class DataError(AgentRLError):
    """An invalid dataset file or row; the text names file, row and field."""


class TemplateError(AgentRLError):
    """A chat template for which turns cannot be appended correctly; the text explains why."""


class RewardError(AgentRLError):
    """A reward function that failed or returned no finite number; the text names function, data source and row."""


class UnknownNameError(AgentRLError):
    """A name without a registry entry, module or file; the text suggests valid names."""


def install_command(extra: str) -> str:
    """Return the command that installs an optional dependency group, for error messages."""
    return f"pip install 'agentrl-train[{extra}]'"


_MOST, _SOME = 40, 8
"""Maximum number of valid names that are all listed, and the number listed if there are more."""


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
