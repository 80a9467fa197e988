"""Findings of an audit: for each invariant, the number of checked items, the problems, and the unchecked items."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

MAX_PROBLEMS = 20
"""Number of problems to keep per invariant; further problems are only counted."""

INVARIANTS: Mapping[str, str] = {
    "file": "every step has a readable file with all columns of its schema and the provenance of its rollouts",
    "tokenizer": "the vocabulary is the one that the rollouts were made with",
    "template": "the chat template is the one that the rollouts were made with",
    "seals": "no value changed since it was written",
    "step": "each row is in the file of its step and split",
    "groups": "rollouts of a group are adjacent, numbered without gaps, and as many as configured",
    "siblings": "all rollouts of a group have the same task",
    "identity": "uid and seed derive from the run's seed",
    "segments": "segments have known authors in a possible order, token ids of the vocabulary, and at least one token",
    "messages": "messages start with the task's messages; each model turn is one message",
    "operations": "each message, segment and call was added by a recorded operation of its conversation, in order",
    "prompt tokens": "prompt tokens equal those of the text that the template renders",
    "further prompts": "the prompt of a further trajectory equals the messages so far, rendered and tokenized again",
    "answer tokens": "tool and user tokens equal those of the text that the template renders",
    "calls": "messages and calls equal the text of the model, parsed again",
    "answers": "tool messages equal the results of the calls; a turn's calls have as many tokens as its tool segment",
    "outcomes": "the outcome of each tool call agrees with the call, its result and the limits of the run",
    "advantages": "advantages are on model tokens only, and equal the advantages computed from the rewards",
    "scores": "log-probabilities and values for training are finite, and on model tokens only",
    "logprobs": "log-probabilities from sampling are finite and at most 0, and on model tokens only",
    "policy versions": "each sampled token has a policy version that is possible at its step",
    "temperature": "tokens were sampled at the configured temperature",
    "rewards": "rewards are finite, and the reward equals the score",
    "scored text": "the scored text equals the text of the rollout",
    "stop": "the stop reason matches how the rollout ended",
    "limits": "no configured limit is exceeded",
    "times": "durations are finite; calls are within their rollout, in the order of turns",
    "rescored": "the scores that `rescore` computes equal the saved scores",
}
"""Invariant -> its meaning."""

Status: TypeAlias = Literal["passed", "failed", "not checkable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One value that breaks an invariant.

    Attributes:
        column: column and position of the value, for example `trajectories[0].segments[2].token_ids[5]`.
    """

    invariant: str
    step: int
    uid: str
    rollout: int
    column: str
    expected: str
    found: str

    @property
    def merge_key(self) -> tuple[str, int, str, int, str]:
        """Place of the problem without the last index. Of successive problems with equal keys, the first is kept."""
        return self.invariant, self.step, self.uid, self.rollout, re.sub(r"\[\d+\]$", "", self.column)


@dataclass(slots=True)
class Finding:
    """Result for one invariant.

    Attributes:
        num_checked: number of checked rows, tokens or calls, depending on the invariant.
        problems: the first problems, one per row and column.
        unchecked: reason why items could not be checked -> number of these items.
    """

    num_checked: int = 0
    num_problems: int = 0
    problems: list[Problem] = field(default_factory=list)
    unchecked: Counter[str] = field(default_factory=Counter)

    @property
    def status(self) -> Status:
        """Status of the invariant; never "passed" if nothing was checked."""
        if self.num_problems:
            return "failed"
        return "passed" if self.num_checked else "not checkable"

    @property
    def uncheckable(self) -> bool:
        """Whether no item could be checked, although there were items to check."""
        return self.status == "not checkable" and bool(self.unchecked)


class Ledger:
    """The findings of an audit, by invariant."""

    def __init__(self) -> None:
        self.findings = {name: Finding() for name in INVARIANTS}

    def count(self, invariant: str, count: int) -> None:
        """Count checked items."""
        self.findings[invariant].num_checked += count

    def skip(self, invariant: str, why: str, count: int = 1) -> None:
        """Count items that could not be checked."""
        if count:
            self.findings[invariant].unchecked[why] += count

    def report(self, problem: Problem) -> None:
        """Add a problem."""
        finding = self.findings[problem.invariant]
        finding.num_problems += 1
        repeated = bool(finding.problems) and finding.problems[-1].merge_key == problem.merge_key
        if len(finding.problems) < MAX_PROBLEMS and not repeated:
            finding.problems.append(problem)


def shown(value: object) -> str:
    """Format a value for a problem: short, on one line."""
    text = value if isinstance(value, str) else repr(value)
    line = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return line if len(line) <= 120 else f"{line[:57]}...{line[-57:]}"
