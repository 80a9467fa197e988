"""Generation: every row rolled out once, kept as trajectories, and beside them as rows with a column of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.attempt import Rollout
from agentrl.config import RunConfig
from agentrl.data.rows import open_rows
from agentrl.errors import ConfigError, DataError
from agentrl.rewards.view import solution_view
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.store.whole import whole_file
from agentrl.trainer.rollout_bar import rollout_progress
from agentrl.trainer.rollout_parts import RolloutParts
from agentrl.trainer.source_parts import num_draws, stored_steps

RESPONSES = "responses"
"""The column of texts, by verl's name for it."""

TextOf = Callable[[Sequence[int]], str]


def check_output(config: RunConfig) -> None:
    """Refuse, before anything is sampled, a `data.output_path` that could not be written in the end.

    Raises:
        ConfigError: it cannot be written.
        DataError: the rows do not fit into one table, or not into a Parquet file.
    """
    if path := config.data.output_path:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(_table(config).slice(0, 1), pa.BufferOutputStream())  # not every type has a Parquet form


def generation_progress(config: RunConfig, rollouts: RolloutParts | None) -> AbstractContextManager[None]:
    """Shows how far a run that only samples is, unless the console logger does."""
    if rollouts is None or config.trainer.mode != "rollout_only" or "console" in config.trainer.logger:
        return nullcontext()
    assert rollouts.train_tasks is not None  # they are what is sampled
    size, steps = config.data.train_batch_size, config.trainer.total_training_steps
    ends = num_draws(config, len(rollouts.train_tasks)) or size * (steps or 0)
    done = min(len(stored_steps(config)) * size, ends)
    return rollout_progress(rollouts.runner, ends * config.rollout.n, done * config.rollout.n)


def finish_generation(config: RunConfig, text_of: TextOf) -> None:
    """Write `data.output_path` where it is asked for, and say what was generated.

    Raises:
        ConfigError: the file cannot be written.
    """
    store = TrajectoryStore(config.trainer.run_dir / TRAJECTORIES / "train")
    num_groups = num_rollouts = num_failed = 0
    texts: dict[int, list[str]] = {}
    tokens = ["trajectories.segments"] if config.data.output_path else []
    for stored in store.scan(columns=["index", "infra_failed", *tokens]):  # all of it would take minutes to decode
        num_groups += stored.number == 0
        num_rollouts += 1
        num_failed += stored.rollout.failed
        if config.data.output_path:
            texts.setdefault(stored.task.index, []).append(response(stored.rollout, text_of))
    failed = f", {num_failed} of them failed" if num_failed else ""
    print(f"{num_rollouts} rollouts of {num_groups} tasks{failed}: {config.trainer.run_dir / TRAJECTORIES / 'train'}")
    if config.data.output_path:
        write_rows(config, texts, config.data.output_path)
        print(f"rows with their {RESPONSES}: {config.data.output_path}")


def response(rollout: Rollout, text_of: TextOf) -> str:
    """The text of a rollout, as a reward is shown it; of one that failed, what there is."""
    return solution_view(rollout, text_of)[0]


def write_rows(config: RunConfig, texts: dict[int, list[str]], path: Path) -> None:
    """The rows of `data.train_files` as they are, with a list of texts each: empty for a row that was left out.

    Args:
        texts: by the position of the row in all files.

    Raises:
        ConfigError: the file cannot be written.
        DataError: the rows of several files do not fit into one table.
    """
    table = _table(config)
    column = [texts.get(index, []) for index in range(table.num_rows)]
    if RESPONSES in table.column_names:
        table = table.drop_columns([RESPONSES])
    table = table.append_column(RESPONSES, pa.array(column, pa.list_(pa.string())))
    with _writing(path), whole_file(path) as file:
        pq.write_table(table, file)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"'data.output_path': cannot write '{path}': {error.strerror}") from error
    except pa.ArrowException as error:
        raise DataError(f"'data.output_path': cannot write '{path}': {' '.join(str(error).split())}") from error


def _table(config: RunConfig) -> pa.Table:
    """Parquet files keep their types; rows of other files get those that Arrow finds."""
    files, limit = config.data.train_files, config.data.train_max_samples
    try:
        table = pa.concat_tables([_file(name) for name in files], promote_options="permissive")
    except (pa.ArrowException, ValueError) as error:  # ValueError: text that is no Unicode
        line = " ".join(str(error).split())
        raise DataError(
            f"'data.output_path': the rows of {', '.join(files)} do not fit into one table: {line}"
        ) from error
    return table if limit < 0 else table.slice(0, limit)


def _file(name: str) -> pa.Table:
    rows = open_rows(name)  # says what is wrong with a file
    if (path := Path(name).expanduser()).suffix == ".parquet":
        return pq.read_table(path, partitioning=None)
    return pa.Table.from_pylist(list(rows.scan(len(rows))))
