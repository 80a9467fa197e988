"""Re-run saved rollouts with recorded tools and a policy. The policy must have the tokenizer of the rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agentrl.agent_loops.resume import ResumePoint
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, DataError, Kind
from agentrl.interactions.replayed import RecordedAnswers
from agentrl.models.adapter_folder import find_adapter
from agentrl.replay.base import Replay
from agentrl.replay.rescore.mode import load_rewards
from agentrl.replay.saved_run import SavedRun
from agentrl.replay.settings import (
    LOOP_CODE,
    REWARD_CODE,
    TOOL_CODE,
    refuse_code_of_rows,
    refuse_missing_code,
    replay_config,
    with_model,
)
from agentrl.replay.tokenizer import PARTS, changed
from agentrl.replay.trusted_config import lookup
from agentrl.rollouts.collector import LengthGuard, side_by_side
from agentrl.run_folder.checkpoints import newest
from agentrl.run_folder.provenance import ENVIRONMENT, REPLAYED_FROM, provenance
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.store.schema import TOOLS, TRAJECTORIES
from agentrl.tools.replayed import RecordedToolbox, Recording, Unrecorded
from agentrl.tools.task_folders import has_steps
from agentrl.trainer.builders.rollouts import RolloutParts, UserObjects, load_chat, open_rollout_parts, sampling_of
from agentrl.types.messages import ToolSchema, image_names
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.task import observation_in


@dataclass(frozen=True, slots=True)
class Rerun:
    """A rollout to re-run, and the recorded results of its tool calls."""

    saved: StoredRollout
    seed: int
    recording: Recording
    resume_point: ResumePoint | None = None


def _first(rollout: Rollout) -> int:
    """Return the index of the trajectory that begins with the task; trajectories of sub-agents may come before it."""
    opened = (each.trajectory for each in rollout.operations if each.kind is OperationKind.TASK)
    return next((number for number in opened if number in range(len(rollout.trajectories))), 0)


def rerun_of(saved: StoredRollout, seed: int, from_turn: int = 0, resume_point: ResumePoint | None = None) -> Rerun:
    """Prepare a re-run that replays the calls recorded in model turn `from_turn` and later turns.

    Raises:
        DataError: the rollout contains images; they cannot be replayed, because results are recorded as text only.
    """
    if image_names(saved.task.messages) or any(trajectory.media for trajectory in saved.rollout.trajectories):
        place = f"rollout {saved.number} of group '{saved.task.uid}'"
        raise DataError(f"step {saved.step}: {place} contains images, and replay cannot re-run images yet")
    rollout, task = saved.rollout, saved.task
    calls = [call for call in rollout.tool_calls if call.turn >= from_turn]
    recording = Recording(
        task.uid,
        calls,
        rollout.tool_rewards,
        observation=observation_in(task, rollout.trajectories[_first(rollout)].messages)
        if rollout.trajectories
        else "",
        ended=rollout.stop is Stop.ENVIRONMENT_DONE,
    )
    return Rerun(saved, seed, recording, resume_point)


def refuse_steps(saved: StoredRollout) -> None:
    """Refuse a rollout whose task folder has several steps, because the instructions of the steps are not recorded.

    Raises:
        DataError: the rollout's task folder has several steps.
    """
    if has_steps(saved.task):
        place = f"step {saved.step}: rollout {saved.number} of group '{saved.task.uid}'"
        raise DataError(f"{place} belongs to a task folder of several steps, and replay cannot re-run steps yet")


@dataclass(frozen=True, slots=True)
class Rerunner:
    """The components that re-run rollouts, with the run's settings and limits for `split`.

    Attributes:
        origin: the origin to save with new rollouts, for example `tools of outputs/run@60`.
        environment: name of the saved run's environment; "" if it had none.
        asks_users: whether a simulated user answers where no answer was recorded. If false, the rollout ends there.
    """

    parts: RolloutParts
    toolbox: RecordedToolbox
    split: str
    origin: str
    environment: str
    asks_users: bool

    @property
    def ends_unrecorded(self) -> bool:
        """Whether a tool call without a recorded result ends the rollout."""
        return self.toolbox.unrecorded == "error"

    async def roll_out(self, attempts: Sequence[Rerun]) -> list[Rollout]:
        """Run all attempts and return their rollouts in order. Rollouts of one task share a length guard."""
        config = self.parts.config
        sampling, guards = sampling_of(config.rollout, self.split), config.reward.guards
        counts = Counter(attempt.saved.task.uid for attempt in attempts)
        length_guards = {uid: LengthGuard(count, guards) for uid, count in counts.items()}
        starts = [
            partial(
                self.parts.runner.run,
                attempt.saved.task,
                sampling,
                seed=attempt.seed,
                resume_point=attempt.resume_point,
                toolbox=self.toolbox.playing(attempt.recording),
                answers=RecordedAnswers(
                    attempt.saved.rollout, None if self.asks_users else attempt.recording.unrecorded
                ),
            )
            for attempt in attempts
        ]
        watched = [
            partial(length_guards[attempt.saved.task.uid].await_one, start)
            for attempt, start in zip(attempts, starts, strict=True)
        ]
        return await side_by_side(watched, self.parts.slots)

    def store(self, folder: Path) -> TrajectoryStore:
        """Return a store for new rollouts, with provenance, so that `folder` can itself be replayed."""
        made_with = provenance(self.parts.chat.tokenizer, self.parts.config, self.toolbox.schemas)
        made_with[REPLAYED_FROM] = self.origin
        made_with[ENVIRONMENT] = self.environment
        return TrajectoryStore(folder / TRAJECTORIES / self.split, split=self.split, provenance=made_with)


@asynccontextmanager
async def open_rerunner(replay: Replay, mode: str, default: Unrecorded) -> AsyncIterator[Rerunner]:
    """Build the rollout components with the weights in `model.path`, by default the run's newest checkpoint.

    Args:
        mode: name of the mode, with the turn if it has one.
        default: default handling of tool calls without a recorded result; the command line may override this default.

    Raises:
        ConfigError: there are no weights, the tokenizer of the policy differs from the tokenizer of the rollouts, or a
            re-run needs code that the command line does not name.
        AgentRLError: a component cannot be used as configured.
    """
    unrecorded = replay.options.unrecorded or default
    rewards = replay.options.rewards[:1]
    refuse_missing_code(replay, _needed_code(replay, unrecorded))
    config = _with_policy(replay).without("train_files").without("val_files")
    _check_tokenizer(replay.run, config)
    refuse_code_of_rows((stored.task for stored in replay.run.rollouts(("agent_name", "extra_info", "index"))), config)
    (reward, *_) = load_rewards(replace(replay, options=replace(replay.options, rewards=rewards)), config).values()
    async with open_rollout_parts(config, UserObjects(reward=reward)) as parts:
        multi_turn = config.rollout.multi_turn
        toolbox = RecordedToolbox(_schemas(replay.run), multi_turn, unrecorded, parts.toolbox)
        environment = replay.run.provenances[replay.run.steps[0]].get(ENVIRONMENT, "")
        asks_users = replay.options.unrecorded != "error"
        origin = f"{mode} of {replay.run.name}"
        yield Rerunner(parts, toolbox, replay.run.split, origin, environment, asks_users)


def new_folder(replay: Replay, mode: str) -> Path:
    """Return the folder for new rollouts.

    With `--out`, this is the folder `<mode>` in `--out`; otherwise, the next free `replays/<mode>-<n>` of the run.

    Raises:
        ConfigError: `--out` already contains `<mode>`, or there is no run folder and `--out` is not given.
    """
    if out := replay.options.out:
        if (out / mode).exists():
            raise ConfigError.keyless(f"--out: '{out}' already contains rollouts of '{mode}': give a new folder")
        return out / mode
    if replay.run.folder is None:
        raise ConfigError.keyless(f"{mode}: no folder for the new rollouts: give --out FOLDER")
    folders = (replay.run.folder / "replays" / f"{mode}-{number}" for number in count(1))
    return next(folder for folder in folders if not folder.exists())


def _with_policy(replay: Replay) -> RunConfig:
    defaults = {"tokenizer_path": replay.options.tokenizer} if replay.options.tokenizer else {}
    if lookup(replay.options.overrides, "model.path") is None:
        defaults["path"] = str(_newest(replay.run))
    return with_model(replay_config(replay), replay.options.overrides, **defaults)


def _check_base(checkpoint: Path) -> None:
    """Refuse an adapter whose base model is not a local folder, because only the command line may name a hub model."""
    adapter = find_adapter(checkpoint)
    if adapter and not Path(adapter.base).is_dir():
        raise ConfigError.at(
            "model.path",
            Kind.NOT_SUPPORTED,
            f"'{checkpoint}' is an adapter of '{adapter.base}', which is not a local folder: if you trust it, add"
            f" model.path={adapter.base} model.lora_adapter_path={checkpoint}",
        )


def _newest(run: SavedRun) -> Path:
    checkpoint = newest(run.folder) if run.folder else None
    if checkpoint is None:
        raise ConfigError.at(
            "model.path", Kind.MISSING, f"'{run.name}' has no complete checkpoint: give the policy, model.path=FOLDER"
        )
    _check_base(checkpoint)
    return checkpoint


def _needed_code(replay: Replay, unrecorded: Unrecorded) -> Iterator[str]:
    yield from LOOP_CODE
    if unrecorded == "live":
        yield from TOOL_CODE
    if not replay.options.rewards:
        yield from REWARD_CODE
    if not lookup(replay.options.overrides, "model.path"):
        yield "rollout.script_path"  # the run's policy may be a script


def _check_tokenizer(run: SavedRun, config: RunConfig) -> None:
    if parts := changed(load_chat(config).tokenizer, run.provenances):
        words = " and ".join(PARTS[part] for part in parts)
        raise ConfigError.at(
            "model.path",
            Kind.CONFLICT,
            f"'{run.name}': the rollouts of step {min(parts.values())} have another {words} than"
            f" model.path '{config.model.path}': give a model with the same tokenizer",
        )


def _schemas(run: SavedRun) -> list[ToolSchema]:
    """Schemas of the tools that the run offered to the model."""
    saved = {step: made_with.get(TOOLS) for step, made_with in run.provenances.items()}
    first = saved[run.steps[0]]
    if first is None:
        raise DataError(f"'{run.name}' has no saved tool schemas")
    if others := [step for step in run.steps if saved[step] != first]:
        raise DataError(f"'{run.name}': the tools change at step {others[0]}: select one step, PATH@STEP")
    try:
        return _SCHEMAS.validate_json(first)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise DataError(f"'{run.name}': the saved tool schemas are invalid: {problem}") from None


_SCHEMAS = TypeAdapter(list[ToolSchema])


def names_tools(replay: Replay) -> bool:
    """Whether the command line names tools."""
    return any(lookup(replay.options.overrides, key) for key in TOOL_CODE)
