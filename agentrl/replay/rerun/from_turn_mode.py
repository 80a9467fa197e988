"""`from-turn K`: keep the part of saved rollouts before model turn K, and sample the rest again with a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean

from agentrl.agent_loops.base import agent_loops
from agentrl.agent_loops.resume import ResumePoint
from agentrl.concurrency.notebook import run_loop
from agentrl.errors import ConfigError, DataError
from agentrl.replay.base import ALL, Cell, Key, Replay, Result, Table, by_task, key_of
from agentrl.replay.rerun.runner import Rerun, Rerunner, names_tools, new_folder, open_rerunner, refuse_steps, rerun_of
from agentrl.replay.trusted_config import lookup
from agentrl.stats.base import plain
from agentrl.stats.intervals import mean_estimate, paired_difference
from agentrl.store import StoredRollout
from agentrl.tools.replayed import Unrecorded
from agentrl.types.rollout import Group, Rollout
from agentrl.utils.seeds import derive_seed

MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Continued:
    """A saved rollout and the scores of its continuations. Failed continuations have no score.

    Attributes:
        saved_score: None if the saved rollout has no score.
        unrecorded: the tool calls without a recorded result, of all continuations.
    """

    key: Key
    saved_score: float | None
    scores: Sequence[float]
    unrecorded: Sequence[str]

    @property
    def gain(self) -> float:
        """Mean score of the continuations minus the saved score; 0 if one of the two is missing."""
        return fmean(self.scores) - self.saved_score if self.scores and self.saved_score is not None else 0.0


def from_turn(replay: Replay) -> Result:
    """Continue each saved rollout from model turn K, counted from 0.

    Each rollout is continued `rollout.n` times if the command line sets this key, else once.

    - All tokens before turn K are kept and never re-tokenized. In the new trajectory, all of them are prompt tokens and
      not trained on, because the saved run already trained on the sampled tokens among them.
    - From turn K on, a call that the saved rollout also made gets the recorded result. `--unrecorded` sets how other
      calls are handled. The default is `live` if the command line names tools, else `error`. Live tools start
      without the effects of calls before turn K. With `error`, the mode fails if a call was not recorded.
    - Continuation i has its own seed, derived from the saved seed, K and i.
    - If K is above 0, only built-in agent loops can continue, because a custom loop may keep state that was not saved.
    - If a rollout's task folder has several steps, the rollout can only be re-run from turn 0 and with live tools.
    - While the conversation equals the saved conversation, the saved answers of the simulated user are used. After
      that, the simulated user itself answers. It starts without its earlier state and gets the full conversation. With
      `--unrecorded error`, the rollout ends instead.

    New rollouts are saved in the folder of `--out`, or else under `replays/` in the run's folder. The continuations of
    one saved rollout form a group with uid `<uid>/<number>`.

    Raises:
        DataError: no rollout can be continued from turn K.
        AgentRLError: see `rerun.runner.open_rerunner`.
    """
    return run_loop(_from_turn(replay))


async def _from_turn(replay: Replay) -> Result:
    turn = replay.options.from_turn or 0
    num = lookup(replay.options.overrides, "rollout.n")
    default: Unrecorded = "live" if names_tools(replay) else "error"
    out, left_out, found = new_folder(replay, f"from-turn-{turn}"), Counter[str](), list[Continued]()
    async with open_rerunner(replay, f"from-turn {turn}", default) as rerunner:
        for _, rows in groupby(replay.run.rollouts(), key=lambda stored: stored.step):
            attempts = list(_attempts(rows, turn, num if isinstance(num, int) else 1, rerunner, left_out))
            if attempts:
                found += await _continue(attempts, rerunner, out)
        failing = rerunner.ends_unrecorded
    if not found:
        raise DataError(f"'{replay.run.name}': no rollout can be continued from turn {turn}: {_reasons(left_out)}")
    result = _result(found, turn, left_out, out, replay.options.level)
    return replace(result, failed=failing and any(each.unrecorded for each in found))


def _attempts(
    rows: Iterable[StoredRollout], turn: int, num: int, rerunner: Rerunner, left_out: Counter[str]
) -> Iterator[Rerun]:
    for saved in rows:
        _check_loop(saved, rerunner, turn)
        if turn or rerunner.toolbox.live is None:
            refuse_steps(saved)
        resume_point = ResumePoint.of(saved.rollout, turn)
        if resume_point is None:
            left_out[_why_left_out(saved.rollout, turn)] += 1
            continue
        for number in range(num):
            seed = derive_seed(saved.rollout.seed, "from-turn", turn, number)
            yield rerun_of(saved, seed, turn, resume_point)


def _why_left_out(rollout: Rollout, turn: int) -> str:
    if len(rollout.dialogues) > 1:
        return "rewrote their history"
    num_turns = sum(trajectory.num_turns for trajectory in rollout.trajectories)
    return "ended before that turn" if turn >= num_turns else "reach that turn after thoughts were dropped"


def _check_loop(saved: StoredRollout, rerunner: Rerunner, turn: int) -> None:
    name = saved.task.agent_name or rerunner.parts.config.rollout.agent_loop
    if turn and not agent_loops.is_builtin(name):
        raise ConfigError.keyless(
            f"row {saved.task.index} ('{saved.task.uid}'): the agent loop '{name}' may have state that was not"
            f" saved: only {', '.join(agent_loops.names())} can continue from a turn above 0"
        )


async def _continue(attempts: Sequence[Rerun], rerunner: Rerunner, out: Path) -> list[Continued]:
    """Run and save the continuations of one step."""
    rollouts = await rerunner.roll_out(attempts)
    by_saved: dict[Key, list[tuple[Rerun, Rollout]]] = {}
    for attempt, rollout in zip(attempts, rollouts, strict=True):
        by_saved.setdefault(key_of(attempt.saved), []).append((attempt, rollout))
    groups = [
        Group(replace(pairs[0][0].saved.task, uid=f"{uid}/{number}"), [rollout for _, rollout in pairs])
        for (_, uid, number), pairs in by_saved.items()
    ]
    rerunner.store(out).write(attempts[0].saved.step, groups)
    return [_continued(key, pairs) for key, pairs in by_saved.items()]


def _continued(key: Key, pairs: Sequence[tuple[Rerun, Rollout]]) -> Continued:
    return Continued(
        key,
        pairs[0][0].saved.rollout.rewards.get("score"),
        [rollout.rewards["score"] for _, rollout in pairs if "score" in rollout.rewards],
        [call for attempt, _ in pairs for call in attempt.recording.unrecorded],
    )


def _result(found: Sequence[Continued], turn: int, left_out: Counter[str], out: Path, level: float) -> Result:
    scored = [each for each in found if each.scores and each.saved_score is not None]
    steps = [list(rows) for _, rows in groupby(scored, key=lambda each: each.key[0])]
    rows = [_row(rows[0].key[0], rows, level) for rows in steps]
    if len(steps) > 1:
        rows.append(_row(ALL, scored, level))
    num_unrecorded = sum(len(each.unrecorded) for each in found)
    summary = (
        f"{len(found):,} rollouts continued from turn {turn}; calls not recorded: {num_unrecorded:,};"
        f" new rollouts: {out}"
    )
    tables = [Table(f"From turn {turn}", _COLUMNS, rows, f"Skipped: {_reasons(left_out)}." if left_out else "")]
    gains = sorted((each for each in scored if each.gain), key=lambda each: -abs(each.gain))[:MAX_SHOWN]
    one_by_one = [[*each.key, each.saved_score, fmean(each.scores), len(each.scores)] for each in gains]
    if one_by_one:
        tables.append(Table("Largest changes", _EACH_COLUMNS, one_by_one))
    values = {
        "turn": turn,
        "out": str(out),
        "left_out": left_out,
        "rollouts": [
            {"key": each.key, "saved": each.saved_score, "continued": each.scores, "unrecorded": each.unrecorded}
            for each in found
        ],
    }
    return Result("from-turn", summary, tables, {name: plain(value) for name, value in values.items()})


_COLUMNS = ("step", "saved rollouts", "saved reward", "new reward", "difference")
_EACH_COLUMNS = ("step", "uid", "rollout", "saved reward", "mean new reward", "continuations")


def _row(name: str | int, rows: Sequence[Continued], level: float) -> list[Cell]:
    """Table row for one step. Values are clustered by task, because rollouts of one task are not independent."""
    tasks = by_task((each.key[:2], (each.saved_score, fmean(each.scores))) for each in rows)
    pairs = [([saved for saved, _ in task if saved is not None], [new for _, new in task]) for task in tasks]
    sides = [mean_estimate([pair[side] for pair in pairs], level) for side in (0, 1)]
    return [name, len(rows), *sides, paired_difference(pairs, level)]


def _reasons(left_out: Counter[str]) -> str:
    return ", ".join(f"{count:,} {why}" for why, count in left_out.items()) or "the run has no rollouts"
