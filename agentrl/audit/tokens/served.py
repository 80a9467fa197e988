"""Check the contexts of runs with `thinking=strip`: each is what the template renders for the messages before it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from agentrl.audit.conversation import Appended, AuditedRollout, AuditedTrajectory, Operation
from agentrl.audit.reading.own_loops import OPENINGS
from agentrl.audit.reading.run_info import Json
from agentrl.audit.template import TemplateRefusesError
from agentrl.audit.tokens.rendered import TokenCheck

_THOUGHTS = re.compile(r"\s*<think>(.*?)(?:</think>(.*)|\Z)|(.*?)</think>(.*)", re.DOTALL)
_REFUSED = "the template refuses the messages, so their answers were appended as with thinking=keep"

Messages = Sequence[Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class ServedTokenCheck:
    """Render the messages before each model turn and compare the result with the context."""

    tokens: TokenCheck

    def check_rollout(self, rollout: AuditedRollout) -> None:
        """Check all trajectories of a rollout."""
        ledger = self.tokens.check.ledger
        ledger.count("further prompts", 1)  # there may be none
        for trajectory in rollout.trajectories:
            if why := self.tokens.why_not(rollout, trajectory):
                ledger.skip("prompt tokens", why)
                ledger.skip("further prompts", why)
                ledger.skip("answer tokens", why, len(trajectory.turns))
                continue
            num_opening = _num_opening(rollout, trajectory)
            for operation in rollout.operations:
                if operation.trajectory == trajectory.number and operation.num_segments:
                    self._operation(rollout, trajectory, operation, num_opening)

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
        """A further trajectory has the messages of its parent, and begins only if the context changes."""
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
        if not oracle.spells_control.search(later):
            expected = oracle.tokens(text)
            same = context == expected
            return None if same else (oracle.tokenizer.decode(expected), oracle.tokenizer.decode(context))
        neutral = json.loads(oracle.spells_control.sub("x", later))
        written = self._render(trajectory, [*messages[:num_opening], *neutral], num_opening)
        if written is None:
            return None
        wrong = oracle.differs(context, text, written, oracle.control_ids)
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
            return oracle.render(served(messages, num_opening, oracle.thoughts_field), tools, prompt=True)
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
    """Return the messages as a server passes them to the template: thoughts of later turns in `field`.

    None: in the content, with their tags.
    """
    return [m if i < num_opening or m["role"] != "assistant" else _served(m, field) for i, m in enumerate(messages)]


def _served(message: Mapping[str, Json], field: str | None) -> Mapping[str, Json]:
    text, thoughts = str(message.get("content") or ""), message.get("reasoning_content")
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    if field is None:
        return rest if thoughts is None else {**rest, "content": f"<think>\n{thoughts}\n</think>\n\n{text}"}
    if thoughts is not None:
        return {**rest, field: thoughts}
    found = _THOUGHTS.fullmatch(text)
    if found is None:
        return message
    cut, after = (found[1], found[2]) if found[1] is not None else (found[3], found[4])
    return {**rest, "content": (after or "").lstrip("\n"), field: cut.strip("\n")}
