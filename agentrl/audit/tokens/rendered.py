"""Check token ids and authors; re-render and re-tokenize the text around the model's turns."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import (
    NO_TOKENIZER,
    Appended,
    AuditedRollout,
    AuditedTrajectory,
    Turn,
    shows_images,
)
from agentrl.audit.reading.run_info import Json, RunInfo
from agentrl.audit.template import TemplateOracle, TemplateRefusesError

AUTHORS = ("prompt", "model", "tool", "user", "demonstration")
_SEGMENTS = "trajectories.segments"
ANY_TURN: Mapping[str, Json] = {"role": "assistant", "content": "x"}
_HASH = re.compile("[0-9a-f]{64}")


def check_segments(check: Checker, oracle: TemplateOracle | None, continued: bool, own: Collection[int]) -> None:
    """Check that the order of authors is possible, that ids are in the vocabulary, and that no segment is empty.

    Args:
        continued: whether the rollouts continue saved rollouts, so that model turns may be part of the prompt.
        own: rows of custom loops with recorded operations; such loops may append segments in any order after the
            prompt.
    """
    step = check.step
    authors, items = step[f"{_SEGMENTS}.author"], step.items[_SEGMENTS]
    first = np.zeros(len(items), np.bool_)
    first[items.ends[:-1][items.lengths > 0]] = True
    effective = [
        "model" if continued and author == "prompt" and not first[i] else author for i, author in enumerate(authors)
    ]
    free = [row in own for row in items.row.tolist()]
    order = [_may_follow(author, effective[i - 1], bool(first[i]), free=free[i]) for i, author in enumerate(effective)]
    check.require(
        "segments", f"{_SEGMENTS}.author", np.array(order, np.bool_), "the prompt first, then turns and their answers"
    )
    lengths = step.items[f"{_SEGMENTS}.token_ids"].lengths
    for index in np.flatnonzero(lengths == 0).tolist():
        check.problem("segments", *step.place(f"{_SEGMENTS}.author", index), "a segment with tokens", "none")
    media = step[f"{_SEGMENTS}.media"]
    named = [bool(_HASH.fullmatch(str(name))) for name in media]
    check.require("segments", f"{_SEGMENTS}.media", np.array(named, np.bool_), "a SHA-256")
    ids = step[f"{_SEGMENTS}.token_ids"]
    if oracle is None:
        check.ledger.skip("segments", f"vocabulary: {NO_TOKENIZER}", len(ids))
        return
    sampled = np.isin(np.array(authors, object), ["model"])[step.items[f"{_SEGMENTS}.token_ids"].owner]
    known = np.where(sampled, max(oracle.num_ids, oracle.num_model_ids), oracle.num_ids)
    check.require("segments", f"{_SEGMENTS}.token_ids", (ids >= 0) & (ids < known), "an id of the vocabulary")


def _may_follow(author: str, before: str, first: bool, *, free: bool) -> bool:
    if first or author == "prompt":
        return first and author == "prompt"
    turns = ("model", "demonstration")
    return author in AUTHORS and (free or (author in turns) != (before in turns))


@dataclass(slots=True)
class TokenCheck:
    """Render conversations and compare the result with the segments. Equal conversations are rendered only once."""

    check: Checker
    oracle: TemplateOracle
    templated: bool
    _pieces: dict[str, list[str] | str] = field(default_factory=dict)

    def check_rollout(self, rollout: AuditedRollout) -> None:
        """Check all trajectories of a rollout."""
        # counted even if there is no further prompt, because an invariant passes only if something was counted
        self.check.ledger.count("further prompts", 1)
        for trajectory in rollout.trajectories:
            why = self.why_not(rollout, trajectory)
            if why:
                self.check.ledger.skip("prompt tokens", why)
                self.check.ledger.skip("answer tokens", why, len(trajectory.turns))
            else:
                self._trajectory(rollout, trajectory)

    def why_not(self, rollout: AuditedRollout, trajectory: AuditedTrajectory) -> str:
        """Return why the tokens of a trajectory cannot be checked; "" if they can."""
        if rollout.kind is None:
            return rollout.why
        if not self.templated:
            return "the chat template differs from the one that made the rollouts"
        if shows_images(trajectory.messages):
            return "image tokens: the processor makes them, not the tokenizer"
        if trajectory.wording.template_tools is None and trajectory.fits:
            return "the schemas of the conversation's tools were not saved"
        return "" if trajectory.fits else "messages and segments do not match"

    def _trajectory(self, rollout: AuditedRollout, trajectory: AuditedTrajectory) -> None:
        tools = trajectory.wording.template_tools or []
        if trajectory.branches:
            self._check_copy(rollout, trajectory)
            for one in trajectory.appended:
                self.appended(rollout, trajectory, tools, one)
            return
        separate = _is_separate(trajectory)
        pieces = self.rendered(_without_turns(trajectory) if separate else trajectory, tools)
        if isinstance(pieces, str):
            why = f"chat template error: {pieces[:80]}"
            self.check.ledger.skip("prompt tokens", why)
            self.check.ledger.skip("answer tokens", why, len(trajectory.turns))
            return
        self.check.ledger.count("prompt tokens", 1)
        self.compare("prompt tokens", rollout, trajectory, trajectory.prompt, self.oracle.tokens(pieces[0]))
        for one in trajectory.appended if separate else ():
            self.appended(rollout, trajectory, tools, one)
        for number, turn in enumerate(() if separate else trajectory.turns):
            if turn.reply >= 0:
                self.check.ledger.count("answer tokens", 1)
                self._answer(rollout, trajectory, tools, turn, number, pieces[number + 1])

    def appended(
        self, rollout: AuditedRollout, trajectory: AuditedTrajectory, tools: Sequence[Json], one: Appended
    ) -> None:
        """Compare the tokens of one operation with the template's text for the messages that the operation added."""
        before = trajectory.turns[one.turn] if one.turn >= 0 else self._before(trajectory)
        # the opening of a branch ends with a model turn, which `ANY_TURN` replaces
        opening = trajectory.messages[: trajectory.num_opening - trajectory.branches]
        alone = replace(trajectory, messages=[*opening, ANY_TURN, *one.messages], num_opening=len(opening))
        pieces = self.rendered(alone, tools)
        if isinstance(pieces, str):
            self.check.ledger.skip("answer tokens", f"chat template error: {pieces[:80]}")
            return
        self.check.ledger.count("answer tokens", 1)
        self._answer(rollout, alone, tools, replace(before, replies=one.messages, reply=one.segment), 0, pieces[1])

    def _before(self, trajectory: AuditedTrajectory) -> Turn:
        """Stand-in for the turn before the first operation: the end of a branch's prompt, or only an end token."""
        end = [int(each) for each in self.ids(trajectory.prompt)[-1:]] if trajectory.branches else []
        closed = not trajectory.branches or bool(end and end[0] in self.oracle.end_ids)
        return Turn(-1, end or list(self.oracle.end_ids[:1]), "", closed, 0, ANY_TURN, (), -1)

    def _check_copy(self, rollout: AuditedRollout, trajectory: AuditedTrajectory) -> None:
        """Check that a branch begins with the same tokens as its parent, up to the end of a model turn."""
        parent = next((each for each in rollout.trajectories if each.number == trajectory.parent), None)
        if parent is None:  # reported by `operations`
            return
        ends = self.check.step.items[_SEGMENTS].ends[parent.index : parent.index + 2].tolist()
        found, before = list(self.ids(trajectory.prompt)), list[int]()
        messages = trajectory.messages[: trajectory.num_opening]
        turns = {turn.segment: turn.position for turn in parent.turns}
        for segment in range(*ends):
            before.extend(self.ids(segment))
            if segment in turns and before == found and messages == parent.messages[: turns[segment] + 1]:
                return
        row, column = self.place(trajectory.prompt)
        self.check.problem(
            "further prompts", row, column, f"the beginning of trajectory {parent.number}", "other tokens or messages"
        )

    def _answer(
        self,
        rollout: AuditedRollout,
        trajectory: AuditedTrajectory,
        tools: Sequence[Json],
        turn: Turn,
        number: int,
        piece: str,
    ) -> None:
        contents = [message.get("content") for message in turn.replies]
        if not any(self.oracle.spells_added.search(str(content)) for content in contents):
            self.compare("answer tokens", rollout, trajectory, turn.reply, self.after(turn, piece))
            return
        neutral = self.rendered(_neutral(trajectory), tools)
        if isinstance(neutral, str):
            self.check.ledger.skip(
                "answer tokens", "contents look like control tokens, and the template cannot render neutral contents"
            )
            return
        found = [int(i) for i in self.ids(turn.reply)]
        expected, other = (text[self._start(turn, text) :] for text in (piece, neutral[number + 1]))
        if wrong := self.oracle.differs(found, expected, other):
            row, column = self.place(turn.reply)
            self.check.problem("answer tokens", row, column, repr(expected), wrong)

    def _start(self, turn: Turn, piece: str) -> int:
        """Position in `piece` at which the answer starts: after the end token, if the turn already contains one."""
        end = self.oracle.spells_added.search(piece)
        if end is None or not turn.closed:
            return 0
        replaced = turn.ids[-1] != self.oracle.added[end[0]]
        return 0 if replaced and self.oracle.ends.opens(end[0]) else end.end()

    def after(self, turn: Turn, piece: str) -> list[int]:
        """Return the tokens after a turn, without the end token if the turn already contains one."""
        ids = self.oracle.tokens(piece)
        start = self._start(turn, piece)
        return ids[len(self.oracle.tokens(piece[:start])) :]

    def compare(
        self,
        invariant: str,
        rollout: AuditedRollout,
        trajectory: AuditedTrajectory,
        segment: int,
        expected: Sequence[int],
    ) -> None:
        """Compare the tokens of a segment with the expected tokens."""
        found = self.ids(segment)
        if np.array_equal(found, expected):
            return
        common = min(len(found), len(expected))
        differ = np.flatnonzero(found[:common] != np.array(expected[:common], np.int64))
        at = int(differ[0]) if len(differ) else common
        row, column = self.place(segment)
        self.check.problem(invariant, row, f"{column}[{at}]", self._near(expected, at), self._near(found, at))

    def _near(self, ids: Sequence[int], at: int) -> str:
        """Describe the token at position `at`: its id, its text, and the number of all tokens."""
        near = [int(i) for i in ids[at : at + 1]]
        if not near:
            return f"{len(ids)} tokens"
        text = self.oracle.tokenizer.decode(near) if 0 <= near[0] < self.oracle.num_ids else "not a token"
        return f"{near[0]} {text!r}, of {len(ids)} tokens"

    def ids(self, segment: int) -> Sequence[int]:
        """Return the tokens of a segment."""
        step = self.check.step
        ends = step.items[f"{_SEGMENTS}.token_ids"].ends
        ids: Sequence[int] = step[f"{_SEGMENTS}.token_ids"][ends[segment] : ends[segment + 1]]
        return ids

    def place(self, segment: int) -> tuple[int, str]:
        """Return (row, column) of the tokens of a segment."""
        return self.check.step.list_place(f"{_SEGMENTS}.token_ids", segment)

    def rendered(self, trajectory: AuditedTrajectory, tools: Sequence[Json]) -> list[str] | str:
        """Return the text pieces around the turns, or the error message if the template cannot render them."""
        others = [
            m if i < trajectory.num_opening or m["role"] != "assistant" else 0
            for i, m in enumerate(trajectory.messages)
        ]
        key = json.dumps([trajectory.num_opening, others, tools])
        if key not in self._pieces:
            try:
                self._pieces[key] = self.oracle.pieces(trajectory.messages, trajectory.num_opening, tools)
            except TemplateRefusesError as error:
                self._pieces[key] = str(error)
        return self._pieces[key]


def _neutral(trajectory: AuditedTrajectory) -> AuditedTrajectory:
    """The same conversation, with the content of each answer replaced by one word."""
    messages = [
        message if i < trajectory.num_opening or message["role"] == "assistant" else {**message, "content": "x"}
        for i, message in enumerate(trajectory.messages)
    ]
    return replace(trajectory, messages=messages)


def _without_turns(trajectory: AuditedTrajectory) -> AuditedTrajectory:
    return replace(trajectory, messages=trajectory.messages[: trajectory.num_opening])


def _is_separate(trajectory: AuditedTrajectory) -> bool:
    """Whether each `Appended` must be rendered alone.

    This is necessary if one of them precedes all turns, or if two of them follow the same turn.
    """
    places = [each.turn for each in trajectory.appended]
    return -1 in places or len(set(places)) < len(places)


def check_hashes(check: Checker, oracle: TemplateOracle | None, why: str) -> dict[str, bool]:
    """Check vocabulary and template against the saved hashes. Return whether each matches; true if not checkable."""
    names = {"tokenizer": "provenance.tokenizer_sha256", "template": "provenance.chat_template_sha256"}
    found, same = oracle.hashes() if oracle else {}, dict[str, bool]()
    for invariant, key in names.items():
        saved = check.step.metadata.get(key)
        same[invariant] = saved is None or not found or found[invariant] == saved
        if saved is None or oracle is None:
            check.ledger.skip(invariant, "no saved hash" if saved is None else why)
            continue
        check.ledger.count(invariant, 1)
        if not same[invariant] and len(check.step):
            check.problem(invariant, 0, f"metadata {key}", saved, f"{found[invariant]} of '{_name(oracle)}'")
    return same


def _name(oracle: TemplateOracle) -> str:
    return str(oracle.tokenizer.name_or_path)


def saved_hashes(metadata: Mapping[str, str]) -> dict[str, str]:
    """Invariant -> the hash saved in the file's metadata."""
    names = {"tokenizer": "provenance.tokenizer_sha256", "template": "provenance.chat_template_sha256"}
    return {name: metadata[key] for name, key in names.items() if key in metadata}


def template_variables(known: RunInfo) -> Mapping[str, Json]:
    """Additional variables of the chat template, from the run's configuration."""
    return known.get("data.apply_chat_template_kwargs") or {}
