"""Check the contexts of runs with `thinking=strip`: each context must equal the rendering of the messages before it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from agentrl.audit.conversation import Appended, AuditedRollout, AuditedTrajectory, Operation
from agentrl.audit.reading.own_loops import OPENINGS
from agentrl.audit.reading.run_info import Json
from agentrl.audit.template import TRIAL, TemplateRefusesError
from agentrl.audit.tokens.rendered import ANY_TURN, TokenCheck

_REFUSED = "the template refuses the messages, so the answers were appended as with thinking=keep"

Messages = Sequence[Mapping[str, Json]]


_TOOL: Json = {"type": "function", "function": {"name": "f", "description": "f", "parameters": {}}}
_CALL: Json = {"id": "c00000000", "type": "function", "function": {"name": "f", "arguments": {}}}
_THOUGHT = "zqtTHOUGHTtqz"


@dataclass(frozen=True)
class ServedTokenCheck:
    """Render the messages before each model turn and compare the result with the context."""

    tokens: TokenCheck

    @cached_property
    def thoughts_field(self) -> str | None:
        """Field of an assistant message from which the template reads thoughts; None if it reads none."""
        for field in ("reasoning_content", "thinking", "reasoning"):
            plain = {"role": "assistant", "content": "b", field: _THOUGHT}
            for turn in (plain, {**plain, "content": "", "tool_calls": [_CALL]}):
                try:
                    text = self.tokens.oracle.render([TRIAL[1], turn], [], prompt=False)
                except TemplateRefusesError:
                    continue
                if _THOUGHT in text:
                    return field
        return None

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids of control tokens: special tokens, and added tokens that the template writes between turns.

        The text of messages after the opening must not become a control token.
        """
        oracle = self.tokens.oracle
        for trial in (TRIAL, [message for message in TRIAL if message["role"] != "tool"]):
            try:
                written = oracle.tokens("".join(oracle.pieces(trial, 2, [_TOOL])[1:]))
            except TemplateRefusesError:
                continue
            return oracle.special_ids | (frozenset(written) & frozenset(oracle.added.values()))
        return oracle.special_ids

    @cached_property
    def spells_control(self) -> re.Pattern[str]:
        """Pattern that matches the text of any token of `control_ids`."""
        texts = [text for text, number in self.tokens.oracle.added.items() if number in self.control_ids]
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")

    def check_rollout(self, rollout: AuditedRollout) -> None:
        """Check all trajectories of a rollout."""
        ledger = self.tokens.check.ledger
        # counted even if there is no further prompt, because an invariant passes only if something was counted
        ledger.count("further prompts", 1)
        for trajectory in rollout.trajectories:
            if why := self.tokens.why_not(rollout, trajectory):
                ledger.skip("prompt tokens", why)
                ledger.skip("further prompts", why)
                ledger.skip("answer tokens", why, len(trajectory.turns))
                continue
            num_opening = _num_opening(rollout, trajectory)
            self._answers_elsewhere(rollout, trajectory)
            for operation in rollout.operations:
                if operation.trajectory == trajectory.number and operation.num_segments:
                    self._operation(rollout, trajectory, operation, num_opening)

    def _answers_elsewhere(self, rollout: AuditedRollout, trajectory: AuditedTrajectory) -> None:
        """Check the token counts of calls whose answers are in the prompt of the next trajectory.

        The saved count of a call is the number of tokens that the answer would have added if it had been appended to
        this trajectory.
        """
        number = len(trajectory.turns) - 1
        made = rollout.calls_of(trajectory, number) if trajectory.turns else []
        last = trajectory.turns[-1] if made else None
        spelled = last and self.spells_control.search(json.dumps(last.replies, ensure_ascii=False))
        if last is None or last.reply >= 0 or not last.replies or spelled:
            return
        opening = trajectory.messages[: trajectory.num_opening]
        alone = replace(trajectory, messages=[*opening, ANY_TURN, *last.replies])
        pieces = self.tokens.rendered(alone, trajectory.wording.template_tools or [])
        if isinstance(pieces, str):
            return
        expected, found = len(self.tokens.after(last, pieces[1])), sum(call.num_tokens for call in made)
        if found != expected:
            column = f"{self.tokens.check.step.items['tool_calls'].label(made[0].index, 'num_tokens')}"
            self.tokens.check.problem("answers", rollout.row, column, f"{expected} in total for the turn", found)

    def _operation(
        self, rollout: AuditedRollout, trajectory: AuditedTrajectory, operation: Operation, num_opening: int
    ) -> None:
        """Check the context after an operation that is not a model turn."""
        if operation.kind == "model_turn":
            return
        messages = trajectory.messages[: operation.first_message + operation.num_messages]
        segment = trajectory.prompt + operation.first_segment + operation.num_segments - 1
        invariant = "answer tokens"
        if operation.kind in OPENINGS:
            invariant = "further prompts" if operation.kind == "render" else "prompt tokens"
            num_opening = num_opening if operation.kind in ("render", "resume") else len(messages)
        text = self._render(trajectory, messages, num_opening)
        if text is None:
            self._as_kept(rollout, trajectory, operation, segment)
            return
        self.tokens.check.ledger.count(invariant, 1)
        context = list(chain.from_iterable(self.tokens.ids(each) for each in range(trajectory.prompt, segment + 1)))
        if wrong := self._differs(trajectory, messages, num_opening, context, text):
            self._problem(invariant, segment, *wrong)
        elif operation.kind == "render":
            self._check_parent(rollout, trajectory, segment, context)

    def _check_parent(
        self, rollout: AuditedRollout, trajectory: AuditedTrajectory, segment: int, context: Sequence[int]
    ) -> None:
        """Check a further trajectory: it has its parent's messages, but does not begin with all its parent's tokens.

        If the further trajectory began with these tokens, the rollout would have continued the parent instead of
        opening a trajectory.
        """
        parent = next((each for each in rollout.trajectories if each.number == trajectory.parent), None)
        if parent is None:  # reported by `operations`
            return
        if list(trajectory.messages[: len(parent.messages)]) != list(parent.messages):
            self._problem("further prompts", segment, f"the messages of trajectory {parent.number}", "other messages")
        ends = self.tokens.check.step.items["trajectories.segments"].ends[parent.index : parent.index + 2].tolist()
        before = list(chain.from_iterable(self.tokens.ids(each) for each in range(*ends)))
        if context[: len(before)] == before:
            self._problem("further prompts", segment, f"trajectory {parent.number} to continue", "a further trajectory")

    def _differs(
        self,
        trajectory: AuditedTrajectory,
        messages: Messages,
        num_opening: int,
        context: Sequence[int],
        text: str,
    ) -> tuple[object, object] | None:
        """Return (expected, found) if the context is not the tokens of `text`."""
        oracle, later = self.tokens.oracle, json.dumps(messages[num_opening:], ensure_ascii=False)
        if not self.spells_control.search(later):
            expected = oracle.tokens(text)
            same = context == expected
            return None if same else (oracle.tokenizer.decode(expected), oracle.tokenizer.decode(context))
        neutral = json.loads(self.spells_control.sub("x", later))
        written = self._render(trajectory, [*messages[:num_opening], *neutral], num_opening)
        if written is None:
            return None
        wrong = oracle.differs(context, text, written, self.control_ids)
        return (text, wrong) if wrong else None

    def _as_kept(
        self, rollout: AuditedRollout, trajectory: AuditedTrajectory, operation: Operation, segment: int
    ) -> None:
        ledger = self.tokens.check.ledger
        if operation.kind in OPENINGS:
            ledger.skip("prompt tokens", "the template refuses the messages")
            return
        first = operation.first_message
        messages = trajectory.messages[first : first + operation.num_messages]
        turn = sum(each.position < first for each in trajectory.turns) - 1
        tools = trajectory.wording.template_tools or []
        ledger.skip("further prompts", _REFUSED)
        self.tokens.appended(rollout, trajectory, tools, Appended(turn, segment, messages))

    def _render(self, trajectory: AuditedTrajectory, messages: Messages, num_opening: int) -> str | None:
        oracle, tools = self.tokens.oracle, trajectory.wording.template_tools or []
        try:
            return oracle.render(served(messages, num_opening, self.thoughts_field), tools, prompt=True)
        except TemplateRefusesError:
            return None

    def _problem(self, invariant: str, segment: int, expected: object, found: object) -> None:
        row, column = self.tokens.place(segment)
        self.tokens.check.problem(invariant, row, column, expected, found)


def _num_opening(rollout: AuditedRollout, trajectory: AuditedTrajectory) -> int:
    """Number of messages with which the conversation of a trajectory was opened."""
    while trajectory.rendered:
        before = [each for each in rollout.trajectories if each.number == trajectory.parent and each is not trajectory]
        if not before or before[0].number >= trajectory.number:
            break
        trajectory = before[0]
    return trajectory.num_opening


def served(messages: Messages, num_opening: int, field: str | None) -> list[Mapping[str, Json]]:
    """Return the messages as a chat server passes them to the template.

    Thoughts of turns after the opening are in `field`. If `field` is None, they are in the content, with their tags.
    """
    return [m if i < num_opening or m["role"] != "assistant" else _served(m, field) for i, m in enumerate(messages)]


def _served(message: Mapping[str, Json], field: str | None) -> Mapping[str, Json]:
    thoughts, content = message.get("reasoning_content"), message.get("content")
    if thoughts is None:
        return message
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return {**rest, field: thoughts} if field else {**rest, "content": f"<think>\n{thoughts}\n</think>\n\n{content}"}
