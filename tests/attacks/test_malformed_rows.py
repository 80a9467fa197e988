"""Saved rows with values that no run writes give one line with file and row, never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hostile_runs import copied
from test_saved_configuration import commands

from agentrl.cli.main import main


def replaced(column: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """A table whose first row has another value in one column."""

    def alter(table: pa.Table) -> pa.Table:
        index, kind = table.schema.get_field_index(column), table.schema.field(column).type
        values = [value, *table[column].to_pylist()[1:]]
        return table.set_column(index, pa.field(column, kind, nullable=True), pa.array(values, kind))

    return alter


MUTATIONS = {
    **{f"null {name}": replaced(name, None) for name in ("uid", "messages", "stop", "rewards", "trajectories", "step")},
    **{f"{name} is a list": replaced(name, "[1, 2]") for name in ("extra_info", "tools_kwargs", "messages")},
    **{f"{name} is no JSON": replaced(name, "{") for name in ("extra_info", "tools_kwargs", "messages")},
    "deep": replaced("extra_info", "[" * 90_000),
    "messages are numbers": replaced("messages", "[{}]"),
    "negative rollout": replaced("rollout", -1),
    "negative step": replaced("step", -5),
    "huge index": replaced("index", 2**62),
    "unknown stop": replaced("stop", "because"),
    "no trajectories": replaced("trajectories", []),
    "a column less": lambda table: table.drop_columns(["rewards"]),
    "twice": lambda table: pa.concat_tables([table, table]),
    "no rows": lambda table: table.slice(0, 0),
    "another version": lambda table: table.replace_schema_metadata({"agentrl.schema_version": "99"}),
    "no version": lambda table: table.replace_schema_metadata({}),
}


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", MUTATIONS)
def test_no_command_ends_in_a_traceback(
    honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = copied(honest_run, tmp_path / "run", MUTATIONS[name])
    for words in commands(run, tmp_path / "out"):
        status = main(words)  # any error that is not an AgentRLError would be raised
        said = capsys.readouterr().err
        assert status != 2 or said.startswith("agentrl: error: "), words


def test_the_row_is_named(honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(honest_run, tmp_path / "run", replaced("messages", "[{}]"))

    assert main(["replay", str(run), "rescore", "--reward", "exact_match"]) == 2
    said = capsys.readouterr().err
    assert "step-000001.parquet" in said
    assert "column 'messages'" in said
