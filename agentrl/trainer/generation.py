"""Generation: roll out the training rows and save the trajectories; optionally write the rows with responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.config import RunConfig
from agentrl.data.rows.open import open_rows
from agentrl.errors import ConfigError, DataError, Kind
from agentrl.reporting.progress_bar import rollout_progress
from agentrl.rewards.reward_view import solution_view
from agentrl.run_folder.location import shown
from agentrl.run_folder.resume import stored_steps
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.trainer.builders.rollouts import RolloutParts
from agentrl.trainer.builders.sources import num_draws
from agentrl.types.rollout import Rollout
from agentrl.utils.atomic_files import atomic_file

RESPONSES = "responses"
"""Name of the response column, as in verl."""

TextOf = Callable[[Sequence[int]], str]


def check_output(config: RunConfig) -> None:
    """Check before sampling that `data.output_path` can be written.

    Raises:
        ConfigError: the file cannot be written.
        DataError: the files have incompatible columns, or Parquet cannot store a column.
    """
    if path := config.data.output_path:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(_table(config).slice(0, 1), pa.BufferOutputStream())  # fails if Parquet cannot store a type


def generation_progress(config: RunConfig, rollouts: RolloutParts | None) -> AbstractContextManager[None]:
    """Show a progress bar for a run that only samples, unless the console logger shows progress."""
    if rollouts is None or config.trainer.mode != "rollout_only" or "console" in config.trainer.logger:
        return nullcontext()
    assert rollouts.train_tasks is not None  # a rollout_only run has training tasks
    size, steps = config.data.train_batch_size, config.trainer.total_training_steps
    ends = num_draws(config, len(rollouts.train_tasks)) or size * (steps or 0)
    done = min(len(stored_steps(config)) * size, ends)
    return rollout_progress(rollouts.runner, ends * config.group_size, done * config.group_size)


def finish_generation(config: RunConfig, text_of: TextOf) -> None:
    """Write `data.output_path` if configured, and print a summary.

    Raises:
        ConfigError: the file cannot be written.
    """
    store = TrajectoryStore(config.trainer.run_dir / TRAJECTORIES / "train")
    num_groups = num_rollouts = num_failed = 0
    texts: dict[int, list[str]] = {}
    tokens = ["trajectories.segments"] if config.data.output_path else []
    for stored in store.scan(columns=["index", "infra_failed", *tokens]):  # reading all columns takes minutes
        num_groups += stored.number == 0
        num_rollouts += 1
        num_failed += stored.rollout.failed
        if config.data.output_path:
            texts.setdefault(stored.task.index, []).append(response(stored.rollout, text_of))
    failed = f", {num_failed} failed" if num_failed else ""
    place = shown(config.trainer.run_dir / TRAJECTORIES / "train")
    print(f"{num_rollouts} rollouts of {num_groups} tasks{failed}: {place}")
    if config.data.output_path:
        write_rows(config, texts, config.data.output_path)
        print(f"rows with their {RESPONSES}: {shown(config.data.output_path)}")


def response(rollout: Rollout, text_of: TextOf) -> str:
    """Return the text that the reward function receives for a rollout; incomplete if the rollout failed midway."""
    return solution_view(rollout, text_of)[0]


def write_rows(config: RunConfig, texts: dict[int, list[str]], path: Path) -> None:
    """Write the rows of `data.train_files` with a column `responses`, which lists the texts of each row's rollouts.

    Args:
        texts: row number, counted over all files -> the texts of the row's rollouts.

    Raises:
        ConfigError: the file cannot be written.
        DataError: the files have incompatible columns.
    """
    table = _table(config)
    column = [texts.get(index, []) for index in range(table.num_rows)]
    if RESPONSES in table.column_names:
        table = table.drop_columns([RESPONSES])
    table = table.append_column(RESPONSES, pa.array(column, pa.list_(pa.string())))
    with _writing(path), atomic_file(path) as file:
        pq.write_table(table, file)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError.at(
            "data.output_path", Kind.WRONG_VALUE, f"`data.output_path`: cannot write '{shown(path)}': {error.strerror}"
        ) from error
    except pa.ArrowException as error:
        raise DataError(f"'data.output_path': cannot write '{shown(path)}': {' '.join(str(error).split())}") from error


def _table(config: RunConfig) -> pa.Table:
    """Read the rows of `data.train_files`.

    Parquet files keep their column types. For other files, Arrow infers the column types.
    """
    files, limit = config.data.train_files, config.data.train_max_samples
    try:
        table = pa.concat_tables([_file(name) for name in files], promote_options="permissive")
    except (pa.ArrowException, ValueError) as error:  # text that is not valid Unicode raises ValueError
        line = " ".join(str(error).split())
        raise DataError(
            f"'data.output_path': the rows of {', '.join(files)} have incompatible columns: {line}"
        ) from error
    return table if limit < 0 else table.slice(0, limit)


def _file(name: str) -> pa.Table:
    rows = open_rows(name)  # raises a clear error for an unreadable file
    if (path := Path(name).expanduser()).suffix == ".parquet":
        return pq.read_table(path, partitioning=None)
    return pa.Table.from_pylist(list(rows.scan(len(rows))))
