"""Findings of an audit: for each invariant, the number of checked items, the problems, and the unchecked items."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

MAX_PROBLEMS = 20
"""Number of problems to keep per invariant; further ones are only counted."""

INVARIANTS: Mapping[str, str] = {
    "file": "every step has its file, which can be read, has every column of its schema and says how it was made",
    "tokenizer": "the vocabulary is the one the rollouts were made with",
    "template": "the chat template is the one the rollouts were made with",
    "seals": "every value is the one that was written",
    "step": "rows stand in the file of their step and split",
    "groups": "siblings stand together, numbered without gaps, as many as configured",
    "siblings": "siblings say the same of their task",
    "identity": "uid and seed derive from the run's seed",
    "segments": "authors are known and in order, ids are in the vocabulary, no turn is empty",
    "messages": "the messages begin with the task's, and each turn of the model is one of them",
    "prompt tokens": "the prompt's tokens are the template's text, tokenised afresh",
    "answer tokens": "tokens of tools and users are the template's text, tokenised afresh",
    "calls": "the model's text, parsed again, says what messages and calls say",
    "answers": "tool messages are the calls' results, and their tokens add up",
    "outcomes": "outcomes agree with the calls, their answers and the limits",
    "advantages": "advantages stand on the model's tokens alone and follow from the rewards",
    "scores": "what was scored for training stands on the model's tokens alone, and is finite",
    "logprobs": "log-probabilities stand on the model's tokens alone, finite and at most 0",
    "policy versions": "each sampled token names the policy of its step",
    "temperature": "tokens were sampled at the configured temperature",
    "rewards": "rewards are finite, and the reward is the score",
    "scored text": "the reward was shown what the model wrote, and nothing else",
    "stop": "the reason to end agrees with how the rollout ended",
    "limits": "no configured limit is exceeded",
    "times": "durations are finite, and calls lie within their rollout, turn after turn",
    "rescored": "a reward that is given now scores as the saved one did",
}
"""Every invariant, and its meaning."""

Status: TypeAlias = Literal["passed", "failed", "not checkable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One value that breaks an invariant.

    Attributes:
        column: with the position, as in `trajectories[0].segments[2].token_ids[5]`.
    """

    invariant: str
    step: int
    uid: str
    rollout: int
    column: str
    expected: str
    found: str

    @property
    def whole(self) -> tuple[str, int, str, int, str]:
        """The place without the last position. Used to merge problems: an error often repeats in every token."""
        return self.invariant, self.step, self.uid, self.rollout, re.sub(r"\[\d+\]$", "", self.column)


@dataclass(slots=True)
class Finding:
    """Result for one invariant.

    Attributes:
        looked_at: number of checked rows, tokens or calls, depending on the invariant.
        problems: the first problems, one per row and column.
        unchecked: reason why it could not be checked -> count.
    """

    looked_at: int = 0
    num_problems: int = 0
    problems: list[Problem] = field(default_factory=list)
    unchecked: Counter[str] = field(default_factory=Counter)

    @property
    def status(self) -> Status:
        """Status of the invariant; never "passed" if nothing was checked."""
        if self.num_problems:
            return "failed"
        return "passed" if self.looked_at else "not checkable"

    @property
    def wanting(self) -> bool:
        """Whether nothing could be checked although there was something to check."""
        return self.status == "not checkable" and bool(self.unchecked)


class Ledger:
    """The findings of an audit, by invariant."""

    def __init__(self) -> None:
        self.findings = {name: Finding() for name in INVARIANTS}

    def look(self, invariant: str, count: int) -> None:
        """Count checked items."""
        self.findings[invariant].looked_at += count

    def skip(self, invariant: str, why: str, count: int = 1) -> None:
        """Count items that could not be checked."""
        if count:
            self.findings[invariant].unchecked[why] += count

    def report(self, problem: Problem) -> None:
        """Add a problem."""
        finding = self.findings[problem.invariant]
        finding.num_problems += 1
        again = bool(finding.problems) and finding.problems[-1].whole == problem.whole
        if len(finding.problems) < MAX_PROBLEMS and not again:
            finding.problems.append(problem)


def shown(value: object) -> str:
    """Format a value for a problem: short, on one line."""
    text = value if isinstance(value, str) else repr(value)
    line = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return line if len(line) <= 120 else f"{line[:57]}...{line[-57:]}"
