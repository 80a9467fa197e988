"""Malformed and hostile data files give a finding or a one-line error, never a traceback."""

from __future__ import annotations

import pytest
from hostile_data import hostile_files

from agentrl.cli.main import main
from agentrl.config.data import DataConfig
from agentrl.data.inspection import duplicates, inspect, leaks
from agentrl.data.rows.open import open_rows
from agentrl.errors import DataError


def look_at(path):
    """(outcome, the lines that report a problem)."""
    try:
        found = inspect([open_rows(str(path))], DataConfig())
    except DataError as error:
        return "refused", [str(error)]
    assert len(found.table) + found.unreadable.count == found.num_rows
    findings = [found.unreadable, *duplicates(found), *leaks(found, found)]
    return "read", [why for each in findings for _, why in each.examples]


@pytest.mark.slow
def test_invalid_input_is_a_one_line_error(tmp_path):
    outcomes = {"read": 0, "refused": 0}
    for path in hostile_files(tmp_path):
        outcome, lines = look_at(path)
        assert all("\n" not in line for line in lines), path
        outcomes[outcome] += 1
    assert min(outcomes.values()) > 50, outcomes


@pytest.mark.parametrize("kind", ["no UTF-8", "a date after year 9999"])
def test_value_python_cannot_represent_affects_only_its_row(tmp_path, kind):
    (path,) = (each for each in hostile_files(tmp_path) if each.name == f"answer {kind}.parquet")
    found = inspect([open_rows(str(path))], DataConfig())
    assert (found.unreadable.count, len(found.table)) == (1, 1)
    assert found.unreadable.examples[0][0] == f"{path} row 0"
    assert "a value cannot be read" in found.unreadable.examples[0][1]


@pytest.mark.slow
def test_the_command_shows_no_traceback(tmp_path, capsys):
    files = list(hostile_files(tmp_path))
    for path in files[:: max(1, len(files) // 150)]:
        status = main(["data", "check", str(path)])
        said = capsys.readouterr()
        assert status in (0, 1, 2), path
        assert "Traceback" not in said.err, path
        assert "\x1b[2J" not in said.out + said.err, path
        assert len(said.err.splitlines()) == (status == 2), path
