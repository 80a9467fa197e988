"""The audit: file by file, every invariant.

Of some columns it knows bounds, but not the value; within them only a seal tells that one was changed: `duration_s`,
`tool_calls.duration_s`, `.started_s` and `.reward`, `tool_rewards.value`, rewards other than the score, the wording of
`error`, results that had no room in the conversation, `segments.logprobs`, what was scored for training, and in a group
of one what siblings say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.audit import advantages, endings, numbers, places, scored, scores, tokens, turns
from agentrl.audit.base import Ledger, Problem
from agentrl.audit.checker import Checker
from agentrl.audit.files import named_step, open_steps
from agentrl.audit.gaps import check_gaps
from agentrl.audit.known import Known
from agentrl.audit.loading import load_speech
from agentrl.audit.reader import Reader
from agentrl.audit.sealing import check_seals
from agentrl.audit.speech import Speech
from agentrl.audit.table import Step


@dataclass
class Auditor:
    """Audits files, each by what it says of itself; what several of them need is loaded once.

    Attributes:
        split: `train` or `val`, which every row must be of; None takes each file's own.
        tokenizer: a folder in place of the run's own.
        folder: of the run: its latest checkpoint holds the tokenizer too.
        overrides: nested keys of the configuration, in place of what was kept.
    """

    split: str | None = None
    tokenizer: str | None = None
    folder: Path | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    _speeches: dict[str, tuple[Speech | None, str]] = field(default_factory=dict)

    def audit(self, files: Iterable[Path], steps: Collection[int] | None = None, *, whole: bool = False) -> Ledger:
        """Every invariant of every row. One file is in memory at a time.

        Args:
            steps: those that are looked at in a file that is not named by its step; None looks at all.
            whole: these are all files of a run's split, each named by its step: that one is missing is a problem.
        """
        ledger, seen = Ledger(), dict[int, Known | None]()
        for path in files:
            seen[named_step(path)] = None  # unless it can be read
            for step in open_steps(path, ledger, steps):
                seen[step.number] = known = self._known(step, ledger)
                self._step(step, known, ledger)
        if whole:
            check_gaps(ledger, seen, self.split or "train", self.folder)
        return ledger

    def _known(self, step: Step, ledger: Ledger) -> Known | None:
        try:
            return Known.of(step.metadata, self.overrides)
        except ValueError as error:
            ledger.report(Problem("file", step.number, "", -1, "metadata", "a configuration as JSON", f"{error}"))
            return None

    def _step(self, step: Step, known: Known | None, ledger: Ledger) -> None:
        check = Checker(step, ledger)
        check_seals(check)
        if known is None:
            return
        speech, why = self._speech(known, step.metadata)
        same = tokens.check_hashes(check, speech, why)
        speech = speech if same["tokenizer"] else None
        why = why or "the vocabulary is not the one the rollouts were made with"
        split = self.split or (step["split"][0] if len(step) else "train")
        self._columns(check, known, speech, split)
        self._conversations(check, known, speech, why, same["template"])

    def _columns(self, check: Checker, known: Known, speech: Speech | None, split: str) -> None:
        places.check_step(check, self.split)
        groups = places.check_groups(check, known, split)
        places.check_siblings(check, groups)
        places.check_identity(check, known, split, groups)
        tokens.check_segments(check, speech, known.begun_at is not None)
        numbers.check_logprobs(check)
        numbers.check_versions(check, known, split)
        numbers.check_temperature(check, known, split)
        scored.check_scores(check, known, split)
        advantages.check_advantages(check, known, split, groups)
        scores.check_rewards(check)
        scores.check_times(check, known.begun_at or 0)

    def _conversations(self, check: Checker, known: Known, speech: Speech | None, why: str, templated: bool) -> None:
        rendering = tokens.TokenCheck(check, speech, templated) if speech else None
        for talked in Reader(check, known, speech, why).read():
            turns.check_messages(check, talked)
            turns.check_calls(check, talked, known)
            endings.check_ending(check, talked, known)
            scores.check_named_rewards(check, talked, known)
            scores.check_scored_text(check, talked, known, speech)
            if rendering:
                rendering.talked(talked)
            else:
                check.ledger.skip("prompt tokens", why)
                check.ledger.skip("answer tokens", why)

    def _speech(self, known: Known, metadata: Mapping[str, str]) -> tuple[Speech | None, str]:
        folders, template = self._folders(known), known.get("model.chat_template")
        variables, wanted = tokens.known_variables(known), tokens.wanted_hashes(metadata)
        key = repr((folders, template, variables, wanted))
        if key not in self._speeches:
            self._speeches[key] = load_speech(folders, template, variables, wanted)
        return self._speeches[key]

    def _folders(self, known: Known) -> Sequence[str]:
        """Where the tokenizer may be."""
        if self.tokenizer:
            return [self.tokenizer]
        own = known.get("model.tokenizer_path") or known.get("model.path")
        latest = self.folder / "checkpoints" / "latest" if self.folder else None
        return [*([own] if own else []), *([str(latest)] if latest and latest.is_dir() else [])]
