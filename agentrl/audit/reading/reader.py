"""Read the rollouts of a step as conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias, TypeVar

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout, AuditedTrajectory, Call, Operation, Turn, Wording, are_messages
from agentrl.audit.reading.further import with_answers, with_first_prompts
from agentrl.audit.reading.own_loops import OwnTrajectories, num_used
from agentrl.audit.reading.run_info import Json, LoopKind, RowOptions, RunInfo
from agentrl.audit.reading.table import Step
from agentrl.audit.template import TemplateOracle


@dataclass(slots=True)
class Reader:
    """Read the conversations of a step. Unreadable data is reported as a problem of the invariant `messages`."""

    check: Checker
    known: RunInfo
    oracle: TemplateOracle | None
    why_no_oracle: str
    _parsed: dict[str, Json] = field(default_factory=dict)
    _begun: dict[str, str] = field(default_factory=dict)

    def read(self) -> list[AuditedRollout]:
        """Read all rollouts of the step."""
        step = self.check.step
        texts = _model_texts(step, self.oracle, continued=self.known.continued_from is not None)
        calls, operations = _structs(step, "tool_calls", Call), _structs(step, "operations", Operation)
        return [self._rollout(row, texts, calls[row], operations[row]) for row in range(len(step))]

    def _rollout(self, row: int, texts: Texts, calls: list[Call], operations: list[Operation]) -> AuditedRollout:
        step = self.check.step
        task, extra_info = (self._json(row, name, step[name][row]) for name in ("messages", "extra_info"))
        has_folder = isinstance(extra_info, dict) and "task_folder" in extra_info
        kind, why = self._kind(row, operations, has_folder=has_folder)
        for name in ("ground_truth", "tools_kwargs", "interaction_kwargs"):
            self._json(row, name, step[name][row])
        ends_of_rows = step.items["trajectories"].ends
        indices = range(int(ends_of_rows[row]), int(ends_of_rows[row + 1]))
        options = self.known.options(extra_info)
        trajectories = list[AuditedTrajectory]()
        stop, used = step["stop"][row], num_used(operations, calls)
        own = OwnTrajectories(self.known, texts, self._closed, operations, used, calls, stop == "error")
        for number, index in enumerate(indices):
            messages = self._messages(row, number, index)
            if messages is None:
                continue
            opening = next((each.kind for each in operations if each.trajectory == number), "")
            if kind == "own" or (opening != "resume" and any(each.kind == "render" for each in operations)):
                trajectory = own.build(index, number, messages, self._segments(index), trajectories)
            else:
                trajectory = self._trajectory(number, index, messages, texts, kind, task, options)
            trajectories.append(replace(trajectory, opened=self._opened(options.variables)))
        continued = with_first_prompts(with_answers(trajectories))
        return AuditedRollout(row, kind, why, stop, options, task, continued, calls, operations)

    def _opened(self, variables: Mapping[str, Json]) -> str:
        """Return `AuditedTrajectory.opened` for the template variables of a row; "" without a tokenizer."""
        key = json.dumps(variables, sort_keys=True)
        if key not in self._begun:
            if len(self._begun) > 1000:
                self._begun.clear()
            self._begun[key] = self.oracle.with_variables(variables).opened if self.oracle else ""
        return self._begun[key]

    def _kind(self, row: int, operations: list[Operation], *, has_folder: bool) -> tuple[LoopKind | None, str]:
        """Return the kind of a row's agent loop, or None and the reason why the loop is unknown.

        The kind `own` means that the rollout is read from its operations. This is done for custom loops. It is also
        done for built-in loops in a task folder of several steps, because all steps except the first begin with a user
        message.
        """
        step = self.check.step
        kind, why = self.known.loop(step["agent_name"][row])
        if kind in ("tool", "react") and has_folder and any(each.kind == "say" for each in operations):
            return "own", ""
        if kind is not None or self.known.config is None or "operations" not in step.items:
            return kind, why
        if self.known.continued_from is not None:
            return None, f"{why}, and replay continued its rollouts"
        # a loop that failed at the start has neither operations nor trajectories
        if operations or not step.items["trajectories"].lengths[row]:
            return "own", ""
        return None, f"{why} and recorded no operations: it built its rollout itself, without a Conversation"

    def _json(self, row: int, column: str, text: str) -> Json:
        if text not in self._parsed:
            if len(self._parsed) > 10_000:
                self._parsed.clear()
            try:
                self._parsed[text] = json.loads(text)
            except (TypeError, ValueError, RecursionError) as error:  # null, invalid JSON, or nested too deeply
                self.check.ledger.count("messages", 1)
                self.check.problem("messages", row, column, "JSON", f"{error}")
                return None
        return self._parsed[text]

    def _messages(self, row: int, number: int, index: int) -> Sequence[Mapping[str, Json]] | None:
        column = f"trajectories[{number}].messages"
        messages = self._json(row, column, self.check.step["trajectories.messages"][index])
        if are_messages(messages):
            return list(messages)
        self.check.problem("messages", row, column, "a list of messages", messages)
        return None

    def _segments(self, index: int) -> range:
        ends = self.check.step.items["trajectories.segments"].ends
        return range(int(ends[index]), int(ends[index + 1]))

    def _trajectory(
        self,
        number: int,
        index: int,
        messages: Sequence[Mapping[str, Json]],
        texts: Texts,
        kind: LoopKind | None,
        task: Json,
        options: RowOptions,
    ) -> AuditedTrajectory:
        segments = self._segments(index)
        num_opening = _num_opening(messages, task, kind, sum(i in texts for i in segments))
        groups = list(_grouped(messages, num_opening))
        turns, fits = _matched(groups, segments, texts, self._closed)
        prompt = segments[0] if segments else -1
        return AuditedTrajectory(index, number, messages, num_opening, prompt, turns, fits, _wording(kind, options))

    def _closed(self, ids: Sequence[int]) -> bool:
        return bool(ids) and self.oracle is not None and ids[-1] in self.oracle.end_ids


Texts: TypeAlias = Mapping[int, tuple[list[int], str | None]]
"""Segment of a model turn or demonstration -> (tokens, text)."""

T = TypeVar("T", Call, Operation)


def _model_texts(
    step: Step, oracle: TemplateOracle | None, *, continued: bool
) -> dict[int, tuple[list[int], str | None]]:
    """Segment -> (tokens, text), for segments of the model or a demonstration.

    Args:
        continued: whether the rollouts continue saved rollouts. If so, all prompt segments except a trajectory's first
            segment are included, because they contain model turns of the saved rollout.
    """
    path = "trajectories.segments"
    ends, ids = step.items[f"{path}.token_ids"].ends.tolist(), step[f"{path}.token_ids"]
    firsts = set(step.items[path].ends.tolist()) if continued else set()
    turns = ("model", "demonstration", *(["prompt"] if continued else []))
    written = [i for i, author in enumerate(step[f"{path}.author"]) if author in turns and i not in firsts]
    tokens = [ids[ends[i] : ends[i + 1]].tolist() for i in written]
    if not tokens:  # a tokenizer decodes an empty list as one text
        return {}
    known = [oracle.can_read(sequence) for sequence in tokens] if oracle else []
    decoded = oracle.texts([t if ok else [] for t, ok in zip(tokens, known, strict=True)]) if oracle else []
    texts = [text if ok else None for text, ok in zip(decoded, known, strict=True)] or [None] * len(tokens)
    return {i: (sequence, text) for i, sequence, text in zip(written, tokens, texts, strict=True)}


def _structs(step: Step, path: str, kind: type[T]) -> list[list[T]]:
    """Return, for each row, the items of the list column `path` as objects of `kind`, whose fields name the columns."""
    if path not in step.items:  # older schemas
        return [[] for _ in range(len(step))]
    names = [name for name in kind.__annotations__ if name != "index"]
    columns = [step[f"{path}.{name}"] for name in names]
    lists = [column if isinstance(column, list) else column.tolist() for column in columns]
    found = [kind(index, *values) for index, values in enumerate(zip(*lists, strict=True))]
    ends = step.items[path].ends.tolist()
    return [found[start:end] for start, end in pairwise(ends)]


def _wording(kind: LoopKind | None, options: RowOptions) -> Wording:
    """Return how a built-in loop writes tools and answers to calls."""
    offered = options.tools if kind in ("tool", "react") else []
    call_format = "react" if kind == "react" else options.call_format
    form = "react" if kind == "react" else "chat"
    shown = offered if kind == "tool" else []
    return Wording(form, call_format if offered else None, options.names, shown, offered, call_format)


def _num_opening(messages: Sequence[Json], task: Json, kind: LoopKind | None, num_turns: int) -> int:
    """Number of messages before the first turn.

    For a built-in loop, this is the number of the task's messages, plus a system message that the ReAct loop may add.
    """
    if kind is not None and are_messages(task):
        adds_system = kind == "react" and bool(messages) and messages[0]["role"] == "system"
        own_system = bool(task) and task[0]["role"] == "system"
        return min(len(messages), len(task) + int(adds_system and not own_system))
    places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return places[-num_turns] if 0 < num_turns <= len(places) else len(messages)


def _grouped(messages: Sequence[Json], num_opening: int) -> Iterator[tuple[int, Json, list[Json]]]:
    """Yield (position, the model's message, the messages that follow it)."""
    place = num_opening
    while place < len(messages):
        end = place + 1
        while end < len(messages) and messages[end]["role"] != "assistant":
            end += 1
        yield place, messages[place], list(messages[place + 1 : end])
        place = end


def _matched(
    groups: Sequence[tuple[int, Json, list[Json]]],
    segments: range,
    texts: Texts,
    closed: Callable[[Sequence[int]], bool],
) -> tuple[list[Turn], bool]:
    """Return the turns, and whether turns, replies and segments match one to one."""
    turns, at = list[Turn](), segments.start + 1
    fits = bool(segments) and segments.start not in texts
    for position, message, replies in groups:
        segment = at if at in segments and at in texts else -1
        ids, text = texts[segment] if segment >= 0 else ([], "")
        at += int(segment >= 0)
        reply = at if replies and at in segments and at not in texts else -1
        at += int(reply >= 0)
        fits &= message["role"] == "assistant" and (reply >= 0) == bool(replies)
        # a turn that was cut off before its first token has an empty message and no segment, and is the last turn
        fits &= segment >= 0 or (position == groups[-1][0] and not replies and message.get("content") == "")
        turns.append(Turn(segment, ids, text, closed(ids), position, message, replies, reply))
    return turns, fits and at == segments.stop
