"""Check every invariant of saved rollouts, file by file.

The audit cannot recompute the following values: `duration_s`, `tool_calls.duration_s`, `.started_s` and `.reward`,
`tool_rewards.value`, rewards other than the score, the text of `error`, tool results that did not fit into the
conversation, `segments.logprobs`, the log-probabilities and values computed for training, `excluded`, and the task
columns of groups with only one rollout. The audit checks at most whether these values are within possible bounds. But
seals (checksums) detect if the values change later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.audit import (
    advantages,
    endings,
    identity,
    long_tasks,
    operations,
    rewards,
    turns,
)
from agentrl.audit.base import Ledger, Problem
from agentrl.audit.checks import Checker
from agentrl.audit.files import check_gaps, named_step, open_steps
from agentrl.audit.reading.checksums import check_seals
from agentrl.audit.reading.further import as_one
from agentrl.audit.reading.reader import Reader
from agentrl.audit.reading.run_info import RunInfo
from agentrl.audit.reading.table import Step
from agentrl.audit.template import TemplateOracle, load_oracle
from agentrl.audit.tokens import rendered, sampled, trained
from agentrl.audit.tokens.contexts import Contexts


@dataclass
class Auditor:
    """Audit files, each with its own metadata. Tokenizers are cached across files.

    Attributes:
        split: the split that every row must have, `train` or `val`; None: the split is read from the rows of each file.
        tokenizer: folder of a tokenizer to use instead of the run's own tokenizer.
        folder: the run's folder; the tokenizer is also looked up in the latest checkpoint of this folder.
        overrides: nested configuration keys that replace the saved values.
    """

    split: str | None = None
    tokenizer: str | None = None
    folder: Path | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    _oracles: dict[str, tuple[TemplateOracle | None, str]] = field(default_factory=dict)

    def audit(self, files: Iterable[Path], steps: Collection[int] | None = None, *, complete: bool = False) -> Ledger:
        """Check every invariant of every row. Only one file is in memory at a time.

        Args:
            steps: steps to check in files whose names contain no step; None: all.
            complete: whether `files` should contain every file of a run's split, with the step in each file's name.
                If so, each missing file is reported.
        """
        ledger, seen = Ledger(), dict[int, RunInfo | None]()
        for path in files:
            seen[named_step(path)] = None  # replaced below if the file can be read
            for step in open_steps(path, ledger, steps):
                seen[step.number] = known = self._known(step, ledger)
                self._step(step, known, ledger)
        if complete:
            check_gaps(ledger, seen, self.split or "train", self.folder)
        return ledger

    def _known(self, step: Step, ledger: Ledger) -> RunInfo | None:
        try:
            return RunInfo.of(step.metadata, self.overrides)
        except ValueError as error:
            ledger.report(Problem("file", step.number, "", -1, "metadata", "a JSON object", f"{error}"))
            return None

    def _step(self, step: Step, known: RunInfo | None, ledger: Ledger) -> None:
        check = Checker(step, ledger)
        check_seals(check)
        if not len(step):
            ledger.report(Problem("file", step.number, "", -1, "uid", "rollouts", "none"))
        if known is None or not len(step):
            return
        oracle, why = self._oracle(known, step.metadata)
        same = rendered.check_hashes(check, oracle, why)
        oracle = oracle if same["tokenizer"] else None
        why = why or "the vocabulary differs from the one that made the rollouts"
        split = self.split or (step["split"][0] if len(step) else "train")
        self._columns(check, known, oracle, split)
        self._conversations(check, known, oracle, why, same["template"])

    def _columns(self, check: Checker, known: RunInfo, oracle: TemplateOracle | None, split: str) -> None:
        identity.check_step(check, self.split)
        groups = identity.check_groups(check, known, split)
        identity.check_siblings(check, groups)
        identity.check_identity(check, known, split, groups)
        own = [row for row, name in enumerate(check.step["agent_name"]) if known.loop(name)[0] is None]
        recorded = operations.rows(check.step).intersection(own)
        rendered.check_segments(check, oracle, known.continued_from is not None, recorded)
        sampled.check_logprobs(check)
        sampled.check_versions(check, known, split)
        sampled.check_temperature(check, known, split)
        trained.check_scores(check, known, split)
        advantages.check_advantages(check, known, split, groups)
        rewards.check_rewards(check)
        rewards.check_times(check, known.continued_from or 0)

    def _conversations(
        self, check: Checker, known: RunInfo, oracle: TemplateOracle | None, why: str, templated: bool
    ) -> None:
        contexts = Contexts(check, oracle, templated, known) if oracle else None
        for rollout in Reader(check, known, oracle, why).read():
            operations.check_operations(check, rollout, known)
            conversation = as_one(rollout)
            turns.check_messages(check, conversation, known)
            turns.check_calls(check, conversation, known)
            long_tasks.check_links(check, rollout, known)
            endings.check_ending(check, conversation, known)
            rewards.check_named_rewards(check, rollout, known)
            rewards.check_scored_text(check, rollout, known, oracle)
            if contexts:
                contexts.of(rollout).check_rollout(rollout)
            else:
                check.ledger.skip("prompt tokens", why)
                check.ledger.skip("further prompts", why)
                check.ledger.skip("answer tokens", why)

    def _oracle(self, known: RunInfo, metadata: Mapping[str, str]) -> tuple[TemplateOracle | None, str]:
        folders, template = self._folders(known), known.get("model.chat_template")
        variables, hashes = rendered.template_variables(known), rendered.saved_hashes(metadata)
        key = repr((folders, template, variables, hashes))
        if key not in self._oracles:
            self._oracles[key] = load_oracle(folders, template, variables, hashes)
        return self._oracles[key]

    def _folders(self, known: RunInfo) -> Sequence[str]:
        """Folders in which to look for the tokenizer."""
        if self.tokenizer:
            return [self.tokenizer]
        own = known.get("model.tokenizer_path") or known.get("model.path")
        latest = self.folder / "checkpoints" / "latest" if self.folder else None
        return [*([str(own)] if own else []), *([str(latest)] if latest and latest.is_dir() else [])]
