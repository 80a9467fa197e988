"""Rolls saved tasks out again: the policy, the recorded tools, and whether they belong to these rollouts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from agentrl.agent_loops.beginning import Beginning
from agentrl.attempt import Rollout
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.messages import ToolSchema, image_names
from agentrl.replay.base import Replay
from agentrl.replay.rescore import load_rewards
from agentrl.replay.saved import SavedRun
from agentrl.replay.settings import (
    LOOP_CODE,
    REWARD_CODE,
    TOOL_CODE,
    lookup,
    refuse_code_of_rows,
    refuse_missing_code,
    replay_config,
    with_model,
)
from agentrl.replay.tokenizer import WORDS, changed
from agentrl.rollouts.collector import side_by_side
from agentrl.rollouts.siblings import Siblings
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.store.schema import TOOLS, TRAJECTORIES
from agentrl.tools.recorded import RecordedToolbox, Recording, Unrecorded
from agentrl.trainer.checkpoint import newest
from agentrl.trainer.provenance import REPLAYED_FROM, provenance
from agentrl.trainer.rollout_parts import Brought, RolloutParts, load_chat, open_rollout_parts, sampling_of


@dataclass(frozen=True, slots=True)
class Rerun:
    """What is to be rolled out again, and what its tools answer from."""

    saved: StoredRollout
    seed: int
    recording: Recording
    beginning: Beginning | None = None


def rerun_of(saved: StoredRollout, seed: int, from_turn: int = 0, beginning: Beginning | None = None) -> Rerun:
    """One whose recording holds the calls that were made from model turn `from_turn` on.

    Raises:
        DataError: images were shown in it: what a tool answered with is recorded as text alone.
    """
    if image_names(saved.task.messages) or any(trajectory.media for trajectory in saved.rollout.trajectories):
        place = f"rollout {saved.number} of group '{saved.task.uid}'"
        raise DataError(f"step {saved.step}: {place} holds images: it cannot be rolled out again in this version")
    calls = [call for call in saved.rollout.tool_calls if call.turn >= from_turn]
    return Rerun(saved, seed, Recording(saved.task.uid, calls, saved.rollout.tool_rewards), beginning)


@dataclass(frozen=True, slots=True)
class Rolling:
    """What rolls out: as the run did for this split, under the same limits.

    Attributes:
        origin: what new rollouts say they are, such as `tools of outputs/run@60`.
    """

    parts: RolloutParts
    toolbox: RecordedToolbox
    split: str
    origin: str

    @property
    def ends_unrecorded(self) -> bool:
        """Whether a call that was not recorded ends its rollout."""
        return self.toolbox.unrecorded == "error"

    async def roll_out(self, attempts: Sequence[Rerun]) -> list[Rollout]:
        """One rollout each, in their order; those of one task are siblings."""
        config = self.parts.config
        sampling, guards = sampling_of(config.rollout, self.split), config.reward.guards
        counts = Counter(attempt.saved.task.uid for attempt in attempts)
        siblings = {uid: Siblings(count, guards) for uid, count in counts.items()}
        starts = [
            partial(
                self.parts.runner.run,
                attempt.saved.task,
                sampling,
                seed=attempt.seed,
                beginning=attempt.beginning,
                toolbox=self.toolbox.playing(attempt.recording),
            )
            for attempt in attempts
        ]
        watched = [
            partial(siblings[attempt.saved.task.uid].await_one, start)
            for attempt, start in zip(attempts, starts, strict=True)
        ]
        return await side_by_side(watched, self.parts.slots)

    def store(self, folder: Path) -> TrajectoryStore:
        """Where new rollouts are kept, so that `folder` can be replayed in its turn."""
        made_with = provenance(self.parts.chat.tokenizer, self.parts.config, self.toolbox.schemas)
        made_with[REPLAYED_FROM] = self.origin
        return TrajectoryStore(folder / TRAJECTORIES / self.split, split=self.split, provenance=made_with)


@asynccontextmanager
async def open_rolling(replay: Replay, mode: str, usual: Unrecorded) -> AsyncIterator[Rolling]:
    """Build it under the weights of `model.path` of the command line, else of the run's newest checkpoint.

    Args:
        mode: with its turn, where it has one.
        usual: what is done about a call that was not recorded, unless the command line says it.

    Raises:
        ConfigError: there are no weights, the rollouts were made with another tokenizer, or they need code that the
            command line does not name.
        AgentRLError: something cannot be used as configured.
    """
    unrecorded = replay.options.unrecorded or usual
    rewards = replay.options.rewards[:1]
    refuse_missing_code(replay, _needed_code(replay, unrecorded))
    config = _with_policy(replay).without("train_files").without("val_files")
    _check_tokenizer(replay.run, config)
    refuse_code_of_rows((stored.task for stored in replay.run.rollouts(("agent_name", "extra_info", "index"))), config)
    (reward, *_) = load_rewards(replace(replay, options=replace(replay.options, rewards=rewards)), config).values()
    async with open_rollout_parts(config, Brought(reward=reward)) as parts:
        multi_turn = config.rollout.multi_turn
        toolbox = RecordedToolbox(_schemas(replay.run), multi_turn, unrecorded, parts.toolbox)
        yield Rolling(parts, toolbox, replay.run.split, f"{mode} of {replay.run.name}")


def new_folder(replay: Replay, mode: str) -> Path:
    """`<mode>` in the folder of `--out`, else the next free `replays/<mode>-<n>` of the run.

    Raises:
        ConfigError: rollouts are kept there already, or `--out` is needed.
    """
    if out := replay.options.out:
        if (out / mode).exists():
            raise ConfigError(f"--out: '{out}' holds rollouts of '{mode}' already")
        return out / mode
    if replay.run.folder is None:
        raise ConfigError(f"{mode}: say where the new rollouts go, --out FOLDER")
    folders = (replay.run.folder / "replays" / f"{mode}-{number}" for number in count(1))
    return next(folder for folder in folders if not folder.exists())


def _with_policy(replay: Replay) -> RunConfig:
    instead = {"tokenizer_path": replay.options.tokenizer} if replay.options.tokenizer else {}
    if lookup(replay.options.overrides, "model.path") is None:
        instead["path"] = str(_newest(replay.run))
    return with_model(replay_config(replay), replay.options.overrides, **instead)


def _newest(run: SavedRun) -> Path:
    checkpoint = newest(run.folder) if run.folder else None
    if checkpoint is None:
        raise ConfigError(f"'{run.name}' has no whole checkpoint: name the policy, model.path=FOLDER")
    return checkpoint


def _needed_code(replay: Replay, unrecorded: Unrecorded) -> Iterator[str]:
    yield from LOOP_CODE
    if unrecorded == "live":
        yield from TOOL_CODE
    if not replay.options.rewards:
        yield from REWARD_CODE
    if not lookup(replay.options.overrides, "model.path"):
        yield "rollout.script_path"  # the policy of a run that a script rolled out


def _check_tokenizer(run: SavedRun, config: RunConfig) -> None:
    if parts := changed(load_chat(config).tokenizer, run.provenances):
        words = " and ".join(WORDS[part] for part in parts)
        raise ConfigError(
            f"'{run.name}': the rollouts of step {min(parts.values())} were recorded with another {words} than that"
            f" of model.path '{config.model.path}'"
        )


def _schemas(run: SavedRun) -> list[ToolSchema]:
    """The tools that the models of the run were told of."""
    kept = {step: made_with.get(TOOLS) for step, made_with in run.provenances.items()}
    first = kept[run.steps[0]]
    if first is None:
        raise DataError(f"'{run.name}' does not keep which tools there were")
    if others := [step for step in run.steps if kept[step] != first]:
        raise DataError(f"'{run.name}': from step {others[0]} on there were other tools: name one step, PATH@STEP")
    return [ToolSchema.model_validate(schema) for schema in json.loads(first)]


def names_tools(replay: Replay) -> bool:
    """Whether the command line brings tools."""
    return any(lookup(replay.options.overrides, key) for key in TOOL_CODE)
