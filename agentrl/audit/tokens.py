"""Check token ids and authors; re-render and re-tokenize the text around the model's turns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import NO_SPEECH, AuditedRollout, AuditedTrajectory, Turn, shows_images
from agentrl.audit.reading.run_info import Json, RunInfo
from agentrl.audit.template import TemplateOracle, TemplateRefusesError

AUTHORS = ("prompt", "model", "tool", "user", "demonstration")
_SEGMENTS = "trajectories.segments"
_HASH = re.compile("[0-9a-f]{64}")


def check_segments(check: Checker, speech: TemplateOracle | None, given: bool) -> None:
    """Check that the order of authors is possible, that ids are in the vocabulary, and that no segment is empty.

    Args:
        given: model turns may be part of the prompt (continued rollouts).
    """
    step = check.step
    authors, items = step[f"{_SEGMENTS}.author"], step.items[_SEGMENTS]
    first = np.zeros(len(items), np.bool_)
    first[items.ends[:-1][items.lengths > 0]] = True
    said = ["model" if given and author == "prompt" and not first[i] else author for i, author in enumerate(authors)]
    order = [_may_follow(author, said[i - 1], bool(first[i])) for i, author in enumerate(said)]
    check.hold("segments", f"{_SEGMENTS}.author", np.array(order, np.bool_), "prompt first, then turns and answers")
    lengths = step.items[f"{_SEGMENTS}.token_ids"].lengths
    for index in np.flatnonzero(lengths == 0).tolist():
        check.problem("segments", *step.place(f"{_SEGMENTS}.author", index), "a segment with tokens", "none")
    media = step[f"{_SEGMENTS}.media"]
    named = [bool(_HASH.fullmatch(str(name))) for name in media]
    check.hold("segments", f"{_SEGMENTS}.media", np.array(named, np.bool_), "a SHA-256")
    ids = step[f"{_SEGMENTS}.token_ids"]
    if speech is None:
        check.ledger.skip("segments", f"the vocabulary: {NO_SPEECH}", len(ids))
        return
    sampled = np.isin(np.array(authors, object), ["model"])[step.items[f"{_SEGMENTS}.token_ids"].owner]
    known = np.where(sampled, max(speech.num_ids, speech.num_model_ids), speech.num_ids)
    check.hold("segments", f"{_SEGMENTS}.token_ids", (ids >= 0) & (ids < known), "an id of the vocabulary")


def _may_follow(author: str, before: str, first: bool) -> bool:
    if first or author == "prompt":
        return first and author == "prompt"
    turns = ("model", "demonstration")
    return author in AUTHORS and (author in turns) != (before in turns)


@dataclass(slots=True)
class TokenCheck:
    """Render conversations and compare the segments with the rendering. Equal conversations are rendered once."""

    check: Checker
    speech: TemplateOracle
    templated: bool
    _pieces: dict[str, list[str] | str] = field(default_factory=dict)

    def talked(self, talked: AuditedRollout) -> None:
        """Check all trajectories of a rollout."""
        for talk in talked.talks:
            why = self._why_not(talked, talk)
            if why:
                self.check.ledger.skip("prompt tokens", why)
                self.check.ledger.skip("answer tokens", why, len(talk.turns))
            else:
                self._talk(talked, talk)

    def _why_not(self, talked: AuditedRollout, talk: AuditedTrajectory) -> str:
        if talked.kind is None:
            return talked.why
        if not self.templated:
            return "the chat template is not the one the rollouts were made with"
        if shows_images(talk.messages):
            return "the tokens of images are the processor's, not the tokenizer's"
        return "" if talk.fits else "messages and segments do not fit together"

    def _talk(self, talked: AuditedRollout, talk: AuditedTrajectory) -> None:
        tools = talked.options.tools if talked.kind == "tool" else []
        pieces = self._rendered(talk, tools)
        if isinstance(pieces, str):
            why = f"the chat template refuses: {pieces[:80]}"
            self.check.ledger.skip("prompt tokens", why)
            self.check.ledger.skip("answer tokens", why, len(talk.turns))
            return
        self.check.ledger.look("prompt tokens", 1)
        self._compare("prompt tokens", talked, talk, talk.prompt, self.speech.tokens(pieces[0]))
        for number, turn in enumerate(talk.turns):
            if turn.reply >= 0:
                self.check.ledger.look("answer tokens", 1)
                self._answer(talked, talk, tools, turn, number, pieces[number + 1])

    def _answer(
        self,
        talked: AuditedRollout,
        talk: AuditedTrajectory,
        tools: Sequence[Json],
        turn: Turn,
        number: int,
        piece: str,
    ) -> None:
        contents = [message.get("content") for message in turn.replies]
        if not any(self.speech.spells_added.search(str(content)) for content in contents):
            self._compare("answer tokens", talked, talk, turn.reply, self._after(turn, piece))
            return
        neutral = self._rendered(_neutral(talk), tools)
        if isinstance(neutral, str):
            self.check.ledger.skip("answer tokens", "contents spell control tokens, and the template refuses others")
            return
        found = [int(i) for i in self._ids(turn.reply)]
        ended = [self.speech.end_id] if turn.closed and self.speech.end_id is not None else []
        start = piece.find(self._end) if ended else 0  # the model does not write spaces before the end token
        if wrong := self.speech.differs([*ended, *found], piece[start:], neutral[number + 1]):
            row, column = self._place(turn.reply)
            self.check.problem("answer tokens", row, column, repr(piece[start:]), wrong)

    @property
    def _end(self) -> str:
        end_id = self.speech.end_id
        return str(self.speech.tokenizer.decode([end_id])) if end_id is not None else ""

    def _after(self, turn: Turn, piece: str) -> list[int]:
        """Tokens after a turn, without the end token if the turn already contains it."""
        ids = self.speech.tokens(piece)
        return ids[ids.index(turn.ids[-1]) + 1 :] if turn.closed and turn.ids[-1] in ids else ids

    def _compare(
        self, invariant: str, talked: AuditedRollout, talk: AuditedTrajectory, segment: int, expected: Sequence[int]
    ) -> None:
        found = self._ids(segment)
        if np.array_equal(found, expected):
            return
        common = min(len(found), len(expected))
        differ = np.flatnonzero(found[:common] != np.array(expected[:common], np.int64))
        at = int(differ[0]) if len(differ) else common
        row, column = self._place(segment)
        self.check.problem(invariant, row, f"{column}[{at}]", self._near(expected, at), self._near(found, at))

    def _near(self, ids: Sequence[int], at: int) -> str:
        """Describe the token at a position: id, text, number of tokens."""
        near = [int(i) for i in ids[at : at + 1]]
        if not near:
            return f"{len(ids)} tokens"
        text = self.speech.tokenizer.decode(near) if 0 <= near[0] < self.speech.num_ids else "no token"
        return f"{near[0]} {text!r} of {len(ids)} tokens"

    def _ids(self, segment: int) -> Sequence[int]:
        step = self.check.step
        ends = step.items[f"{_SEGMENTS}.token_ids"].ends
        ids: Sequence[int] = step[f"{_SEGMENTS}.token_ids"][ends[segment] : ends[segment + 1]]
        return ids

    def _place(self, segment: int) -> tuple[int, str]:
        return self.check.step.list_place(f"{_SEGMENTS}.token_ids", segment)

    def _rendered(self, talk: AuditedTrajectory, tools: Sequence[Json]) -> list[str] | str:
        """The text pieces around the turns, or the error message if the template cannot render them."""
        others = [m if i < talk.num_opening or m["role"] != "assistant" else 0 for i, m in enumerate(talk.messages)]
        key = json.dumps([talk.num_opening, others, tools])
        if key not in self._pieces:
            try:
                self._pieces[key] = self.speech.pieces(talk.messages, talk.num_opening, tools)
            except TemplateRefusesError as error:
                self._pieces[key] = str(error)
        return self._pieces[key]


def _neutral(talk: AuditedTrajectory) -> AuditedTrajectory:
    """The same conversation, with each answer replaced by one word."""
    messages = [
        message if i < talk.num_opening or message["role"] == "assistant" else {**message, "content": "x"}
        for i, message in enumerate(talk.messages)
    ]
    return AuditedTrajectory(talk.index, talk.number, messages, talk.num_opening, talk.prompt, talk.turns, talk.fits)


def check_hashes(check: Checker, speech: TemplateOracle | None, why: str) -> dict[str, bool]:
    """Whether vocabulary and template match the saved hashes; true if that cannot be checked."""
    names = {"tokenizer": "provenance.tokenizer_sha256", "template": "provenance.chat_template_sha256"}
    found, same = speech.hashes() if speech else {}, dict[str, bool]()
    for invariant, key in names.items():
        kept = check.step.metadata.get(key)
        same[invariant] = kept is None or not found or found[invariant] == kept
        if kept is None or speech is None:
            check.ledger.skip(invariant, "its hash was not kept" if kept is None else why)
            continue
        check.ledger.look(invariant, 1)
        if not same[invariant] and len(check.step):
            check.problem(invariant, 0, f"metadata {key}", kept, f"{found[invariant]} of '{_name(speech)}'")
    return same


def _name(speech: TemplateOracle) -> str:
    return str(speech.tokenizer.name_or_path)


def wanted_hashes(metadata: Mapping[str, str]) -> dict[str, str]:
    """Invariant -> the hash saved in the file's metadata."""
    names = {"tokenizer": "provenance.tokenizer_sha256", "template": "provenance.chat_template_sha256"}
    return {name: metadata[key] for name, key in names.items() if key in metadata}


def known_variables(known: RunInfo) -> Mapping[str, Json]:
    """Additional variables of the chat template."""
    return known.get("data.apply_chat_template_kwargs") or {}
