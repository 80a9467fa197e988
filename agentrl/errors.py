"""The errors a user may cause, and the one way to suggest the name they probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AgentRLError(Exception):
    """A mistake in what the user gave us. Its text is one line: what, where, what was expected.

    The command line prints that line and exits with status 2; our own bugs are never wrapped in it.
    """


class ConfigError(AgentRLError):
    """A key, a value or a combination in the configuration that cannot be honoured."""


class DataError(AgentRLError):
    """A dataset file or row that cannot be used; the text names file, row and field."""


class TemplateError(AgentRLError):
    """A chat template that cannot be continued faithfully turn by turn; the text says why."""


class RewardError(AgentRLError):
    """A reward function that failed or gave no finite number; the text names function, data source and row."""


class UnknownNameError(AgentRLError):
    """A name that no registry entry, module or file answers to; the text lists the valid ones."""


_MOST, _SOME = 40, 8
"""Valid names that an error still lists, and how many of more it does."""


def suggestion(name: str, valid: Iterable[str]) -> str:
    """The tail of an error message: the nearest valid name if one is close, else all of them, or some of very many."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    if len(names) > _MOST:
        return f"valid: {', '.join(names[:_SOME])} and {len(names) - _SOME} more"
    return f"valid: {', '.join(names)}" if names else "there are none"
