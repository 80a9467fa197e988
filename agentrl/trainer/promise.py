"""Whether the same command repeats a run bit for bit: said as it begins, taken back when a clock ends something."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.attempt import Group, Outcome, Rollout, Stop
from agentrl.config import RunConfig
from agentrl.trainer.environment import ENVIRONMENT_FILE, environment, provided, read_environment, why_not
from agentrl.trainer.files import write_whole

Entry: TypeAlias = dict[str, JsonValue]

MOST_ENDED = 100
"""Endings of the promise that are kept one by one; beyond, they are counted."""


class Promise:
    """Keeps `environment.json` of a run: what `environment` says, and under `reproducible`

    - `promised`: whether the same command on such a machine gives the same tokens, rewards, advantages and weights
    - `provided`: what that rests on: the user's own code
    - `why_not`: reasons, one line each, of the configuration or of what happened
    - `settings`: those of the reasons that the configuration gave, before the run went on or now
    - `changed`: what was different when the run went on: `{step, what, before, now}`
    - `ended_by`: what a clock cut off, or the world around failed: `{step, split, uid, rollout, what}`, and what the
      engine forgot: `{step, split, what}`; `num_ended_by`

    Args:
        live: whether anything is rolled out.
        before: folder of the run that is gone on with, where it is another.
        num_evicted: how many open conversations the engine has forgotten so far, to compute them anew.
    """

    def __init__(
        self, config: RunConfig, live: bool, before: Path | None = None, num_evicted: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._file = config.trainer.run_dir / ENVIRONMENT_FILE
        self._before = (before or config.trainer.run_dir) / ENVIRONMENT_FILE
        self._now = environment(config, live)
        self._provided, self._settings = list(provided(config, live)), list(why_not(config, live))
        self._num_evicted = num_evicted if config.rollout.deterministic else lambda: 0.0  # else it was never promised
        self._evicted = self._num_evicted()
        self._changed: list[Entry] = []
        self._ended_by: list[Entry] = []
        self._num_ended = 0
        self._written = False

    def begin(self, step: int) -> None:
        """Say in one line what is promised; where the run goes on after `step`, what changed. A new run begins at -1.

        Of a run that goes on nothing is written before it does a step: it may be finished.
        """
        if step < 0:
            self._write()
        else:
            self._compare(step, read_environment(self._before))
        reasons = self.why_not
        print(f"not promised to repeat bit for bit: {'; '.join(reasons)}" if reasons else "repeats bit for bit")

    def watch(self, step: int, split: str, groups: Sequence[Group]) -> None:
        """Keep what ended the promise in these rollouts; say it the first time."""
        promised, num_before = not self.why_not, self._num_ended
        for ended in (*_endings(step, split, groups), *self._forgotten(step, split)):
            self._num_ended += 1
            self._ended_by += [ended] if self._num_ended <= MOST_ENDED else []
        if promised and self._num_ended:
            print(f"no longer promised to repeat bit for bit: {self.why_not[-1]}")
        if self._num_ended > num_before or not self._written:
            self._write()

    @property
    def why_not(self) -> list[str]:
        """Why the run may not be repeated bit for bit, one line each."""
        changed = [f"after step {each['step']} {_change(each)}" for each in self._changed]
        more = f", and {self._num_ended - 1} more such" if self._num_ended > 1 else ""
        ended = [f"{each['what']} ({_place(each)}){more}" for each in self._ended_by[:1]]
        return [*self._settings, *changed, *ended]

    def _forgotten(self, step: int, split: str) -> Iterator[Entry]:
        """What the engine forgot since it was asked last: computed anew, it may differ in its last bits."""
        before, self._evicted = self._evicted, self._num_evicted()
        for _ in range(round(self._evicted - before)):
            yield {"step": step, "split": split, "what": "rollout.max_num_seqs made the engine forget a conversation"}

    def _compare(self, step: int, kept: Mapping[str, JsonValue]) -> None:
        """Go on from what was kept, as it was after `step`; what came later is done anew."""
        old, new = dict(_leaves(kept or {ENVIRONMENT_FILE: "not there"})), dict(_leaves(self._now))
        undone: dict[str, JsonValue] = {}
        for each in _entries(kept, "changed"):
            if _step(each) < step:
                self._changed.append(each)
            else:  # the steps up to `step` were computed before it
                undone.setdefault(str(each["what"]), each["before"])
        old |= undone
        self._settings = list(dict.fromkeys([*map(str, _said(kept, "settings")), *self._settings]))
        self._ended_by = [each for each in _entries(kept, "ended_by") if _step(each) <= step]
        self._num_ended = len(self._ended_by)
        for what in [name for name in old if old[name] != new.get(name)]:
            self._changed.append({"step": step, "what": what, "before": old[what], "now": new.get(what, "kept")})
            print(f"changed: {_change(self._changed[-1])}")

    def _write(self) -> None:
        reproducible: Entry = {
            "promised": not self.why_not,
            "provided": [*self._provided],
            "why_not": [*self.why_not],
            "settings": [*self._settings],
            "changed": [*self._changed],
            "ended_by": [*self._ended_by],
            "num_ended_by": self._num_ended,
        }
        write_whole(self._file, json.dumps({**self._now, "reproducible": reproducible}, indent=2) + "\n")
        self._written = True


def _endings(step: int, split: str, groups: Sequence[Group]) -> Iterator[Entry]:
    for group in groups:
        for number, rollout in enumerate(group.rollouts):
            for what in _ended_by(rollout):
                yield {"step": step, "split": split, "uid": group.uid, "rollout": number, "what": what}


def _ended_by(rollout: Rollout) -> Iterator[str]:
    if rollout.stop is Stop.DEADLINE:
        yield "rollout.multi_turn.rollout_timeout_s ended a rollout"
    for call in rollout.tool_calls:
        if call.outcome is Outcome.TIMEOUT:
            yield f"tool '{call.name}' ran out of time"
    if rollout.infra_failed:
        yield f"the world around a rollout failed: {rollout.error}"


def _leaves(values: Mapping[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    """`versions.torch` as `torch`; what is promised is no part of the environment."""
    for name, value in values.items():
        if not isinstance(value, dict):
            yield name, value
        elif name != "reproducible":
            yield from ((inner if name == "versions" else f"{name}.{inner}", each) for inner, each in value.items())


def _said(kept: Mapping[str, JsonValue], name: str) -> list[JsonValue]:
    said = kept.get("reproducible")
    values = said.get(name) if isinstance(said, dict) else None
    return values if isinstance(values, list) else []


def _entries(kept: Mapping[str, JsonValue], name: str) -> list[Entry]:
    return [each for each in _said(kept, name) if isinstance(each, dict)]


def _step(each: Entry) -> int:
    step = each["step"]
    assert isinstance(step, int)  # as written here
    return step


def _place(each: Entry) -> str:
    return ", ".join(str(value) for value in (f"step {each['step']}", each.get("uid")) if value)


def _change(each: Mapping[str, JsonValue]) -> str:
    return f"{each['what']} was {each['before']} and is now {each['now']}"
