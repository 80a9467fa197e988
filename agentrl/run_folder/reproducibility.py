"""Report whether a run is reproducible bit for bit. A timeout or infrastructure failure ends reproducibility."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.config import RunConfig
from agentrl.run_folder.environment import environment, provided, why_not
from agentrl.run_folder.files import write_atomically
from agentrl.run_folder.saved_environment import ENVIRONMENT_FILE, read_environment
from agentrl.types.rollout import Group, Outcome, Rollout, Stop

Entry: TypeAlias = dict[str, JsonValue]

MAX_EVENTS = 100
"""Maximum number of saved events that made the run not reproducible; further ones are only counted."""


class ReproducibilityReport:
    """Writes `environment.json` of a run: the result of `environment` (environment.py), and under `reproducible`

    - `promised`: whether the same command on an equal machine produces the same tokens, rewards, advantages and weights
    - `provided`: assumptions about the user's code
    - `why_not`: why the run is not reproducible, one line each: the `settings`, the changes in `changed`, and the first
      event in `ended_by`
    - `settings`: only the reasons from the current configuration and from the configurations before earlier resumes
    - `changed`: changes of the environment when the run was resumed: `{step, what, before, now}`
    - `ended_by`: events that ended reproducibility. `{step, split, uid, rollout, what}`: a timeout or an infrastructure
      failure; `{step, split, what}`: a conversation was evicted from the engine's cache
    - `num_ended_by`: number of these events; only the first `MAX_EVENTS` are listed in `ended_by`

    Args:
        live: whether the run has rollouts.
        before: folder of the resumed run, if it is not this run's folder.
        tools: names of the offered tools that are not marked as deterministic.
        users: names of the simulated users that are not marked as deterministic.
        clients: why the run is not reproducible, if other programs send the requests; "" otherwise.
        num_evicted: returns the number of open conversations whose KV cache the engine has evicted and must recompute.
    """

    def __init__(
        self,
        config: RunConfig,
        live: bool,
        before: Path | None = None,
        num_evicted: Callable[[], float] = lambda: 0.0,
        tools: Sequence[str] = (),
        users: Sequence[str] = (),
        clients: str = "",
    ) -> None:
        self._file = config.trainer.run_dir / ENVIRONMENT_FILE
        self._before = (before or config.trainer.run_dir) / ENVIRONMENT_FILE
        self._now = environment(config, live)
        self._provided, self._settings = (
            list(provided(config, live)),
            [
                *why_not(config, live),
                *_nondeterministic("tools not marked deterministic=True", tools),
                *_nondeterministic("simulated users not marked deterministic", users),
                *([clients] if clients else []),
            ],
        )
        # without `rollout.deterministic`, evictions do not matter: the run is not reproducible anyway
        self._num_evicted = num_evicted if config.rollout.deterministic else lambda: 0.0
        self._evicted = self._num_evicted()
        self._changed: list[Entry] = []
        self._events: list[Entry] = []
        self._num_ended = 0
        self._written = False

    def begin(self, step: int) -> None:
        """Print whether the run is reproducible. If it resumes after `step`, also print changes of the environment.

        For a new run, `step` is -1. For a resumed run, the file is written only after the next step, so that resuming a
        finished run changes no file.
        """
        if step < 0:
            self._write()
        else:
            self._compare(step, read_environment(self._before))
        reasons = self.why_not
        print(f"not reproducible: {'; '.join(reasons)}" if reasons else "reproducible bit for bit")

    def watch(self, step: int, split: str, groups: Sequence[Group]) -> None:
        """Record events in these rollouts that make the run not reproducible; print the first event."""
        promised, num_before = not self.why_not, self._num_ended
        for ended in (*_endings(step, split, groups), *self._evictions(step, split)):
            self._num_ended += 1
            self._events += [ended] if self._num_ended <= MAX_EVENTS else []
        if promised and self._num_ended:
            print(f"no longer reproducible: {self.why_not[-1]}")
        if self._num_ended > num_before or not self._written:
            self._write()

    @property
    def why_not(self) -> list[str]:
        """Reasons why the run may not be reproducible, one line each."""
        changed = [f"after step {each['step']} {_change(each)}" for each in self._changed]
        more = f", and {self._num_ended - 1} more" if self._num_ended > 1 else ""
        ended = [f"{each['what']} ({_place(each)}){more}" for each in self._events[:1]]
        return [*self._settings, *changed, *ended]

    def _evictions(self, step: int, split: str) -> Iterator[Entry]:
        """Yield an entry for each conversation that the engine evicted since the last call.

        An eviction ends reproducibility, because the recomputed KV cache of the conversation may differ slightly.
        """
        before, self._evicted = self._evicted, self._num_evicted()
        for _ in range(round(self._evicted - before)):
            yield {"step": step, "split": split, "what": "the engine evicted a conversation (rollout.max_num_seqs)"}

    def _compare(self, step: int, kept: Mapping[str, JsonValue]) -> None:
        """Restore the saved entries up to `step`, and add an entry for each change of the environment since then.

        Later saved entries are dropped, because their steps are repeated.
        """
        old, new = dict(_leaves(kept or {ENVIRONMENT_FILE: "missing"})), dict(_leaves(self._now))
        undone: dict[str, JsonValue] = {}
        for each in _entries(kept, "changed"):
            if _step(each) < step:
                self._changed.append(each)
            else:  # the steps up to `step` were computed before this change
                undone.setdefault(str(each["what"]), each["before"])
        old |= undone
        self._settings = list(dict.fromkeys([*map(str, _values(kept, "settings")), *self._settings]))
        self._events = [each for each in _entries(kept, "ended_by") if _step(each) <= step]
        self._num_ended = len(self._events)
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
            "ended_by": [*self._events],
            "num_ended_by": self._num_ended,
        }
        write_atomically(self._file, json.dumps({**self._now, "reproducible": reproducible}, indent=2) + "\n")
        self._written = True


def _nondeterministic(what: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        yield f"{what}: {some}"


def _endings(step: int, split: str, groups: Sequence[Group]) -> Iterator[Entry]:
    for group in groups:
        for number, rollout in enumerate(group.rollouts):
            for what in _events(rollout):
                yield {"step": step, "split": split, "uid": group.uid, "rollout": number, "what": what}


def _events(rollout: Rollout) -> Iterator[str]:
    if rollout.stop is Stop.DEADLINE:
        yield "a rollout reached rollout.multi_turn.rollout_timeout_s"
    for call in rollout.tool_calls:
        if call.outcome is Outcome.TIMEOUT:
            yield f"tool '{call.name}' ran out of time"
    if rollout.infra_failed:
        yield f"a rollout had an infrastructure error: {rollout.error}"


def _leaves(values: Mapping[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    """Yield flattened values (`versions.torch` as `torch`), without the key `reproducible`."""
    for name, value in values.items():
        if not isinstance(value, dict):
            yield name, value
        elif name != "reproducible":
            yield from ((inner if name == "versions" else f"{name}.{inner}", each) for inner, each in value.items())


def _values(kept: Mapping[str, JsonValue], name: str) -> list[JsonValue]:
    saved = kept.get("reproducible")
    values = saved.get(name) if isinstance(saved, dict) else None
    return values if isinstance(values, list) else []


def _entries(kept: Mapping[str, JsonValue], name: str) -> list[Entry]:
    return [each for each in _values(kept, name) if isinstance(each, dict)]


def _step(each: Entry) -> int:
    step = each["step"]
    assert isinstance(step, int)  # this class wrote an integer
    return step


def _place(each: Entry) -> str:
    return ", ".join(str(value) for value in (f"step {each['step']}", each.get("uid")) if value)


def _change(each: Mapping[str, JsonValue]) -> str:
    return f"{each['what']} was {each['before']} and is now {each['now']}"
