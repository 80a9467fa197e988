"""Export of preference pairs: a better and a worse rollout of the same group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations, takewhile
from typing import Literal, TypeAlias, cast

from agentrl.chat.history import as_one_text
from agentrl.data.rows.base import Row
from agentrl.store.exporters.selection import Groups, Selection, place
from agentrl.store.stored import StoredRollout
from agentrl.types.messages import Message

Pair: TypeAlias = tuple[StoredRollout, StoredRollout]


def pair_rows(which: Literal["best", "all"], margin: float) -> Callable[[Groups, Selection], Iterator[Row]]:
    """Return the function that yields one row per preference pair.

    A row has `prompt`, `chosen`, `rejected` (chat messages), `tools` if any, `chosen_reward`, `rejected_reward`, and
    the columns from `place`.

    `Selection.min_reward` applies to the chosen rollout only. Rollouts without exactly one trained conversation are
    skipped, because they have no single answer to compare. Pairs with different prompts are skipped too.

    Args:
        which: `best`: a group's best and worst rollout (the first of several with equal rewards); `all`: every pair of
            the group.
        margin: minimum difference of the two rewards. Pairs with equal rewards are never exported.
    """
    return partial(_pair_rows, which == "all", margin)


def _pair_rows(every: bool, margin: float, groups: Groups, selection: Selection) -> Iterator[Row]:
    for group in groups:
        usable = [stored for stored in group if _usable(stored, selection)]
        pairs = list(_pairs(usable, every, margin))
        if not pairs:
            selection.skipped["groups without two rollouts with sufficiently different rewards"] += 1
        for chosen, rejected in pairs:
            if list(selection.rollouts([chosen])) and (row := _row(chosen, rejected, selection)):
                yield row


def _usable(stored: StoredRollout, selection: Selection) -> bool:
    if stored.rollout.failed:
        selection.skipped["failed rollouts"] += 1
    elif len(stored.rollout.trained_dialogues) != 1:
        selection.skipped["rollouts with several conversations"] += 1
    else:
        row = {"messages": stored.rollout.trained_dialogues[0]}
        return selection.is_trainable(stored, cast(Row, row))
    return False


def _pairs(group: Sequence[StoredRollout], every: bool, margin: float) -> Iterator[Pair]:
    if not group:
        return
    ends = (max(group, key=_reward), min(group, key=_reward))
    candidates: Iterable[Pair] = combinations(group, 2) if every else [ends]
    for one, other in candidates:
        chosen, rejected = (one, other) if _reward(one) >= _reward(other) else (other, one)
        difference = _reward(chosen) - _reward(rejected)
        if difference > 0 and difference >= margin:
            yield chosen, rejected


def _reward(stored: StoredRollout) -> float:
    return stored.rollout.reward


def _row(chosen: StoredRollout, rejected: StoredRollout, selection: Selection) -> Row | None:
    (prompt, answer), (others, worse) = _split(chosen), _split(rejected)
    if prompt != others:
        selection.skipped["pairs with different prompts"] += 1
        return None
    tools = selection.offered(chosen.task)
    rewards = {"chosen_reward": _reward(chosen), "rejected_reward": _reward(rejected)}
    row = {"prompt": prompt, "chosen": answer, "rejected": worse, **({"tools": tools} if tools else {}), **rewards}
    return cast(Row, {**row, **place(chosen)})


def _split(stored: StoredRollout) -> tuple[list[Message], list[Message]]:
    messages = stored.rollout.trained_dialogues[0]
    prompt = list(takewhile(lambda message: message["role"] != "assistant", messages))
    return prompt, [*map(as_one_text, messages[len(prompt) :])]
