from __future__ import annotations

from agentrl.data.inspection import Finding


def test_a_finding_counts_every_row_and_shows_each_reason_once() -> None:
    found = Finding("rows that no reward scores")
    for row, why in enumerate(["no truth", "no truth", "no reward", "no truth"]):
        found.add(f"row {row}", why)
    assert found.count == 4
    assert found.examples == [("row 0", "no truth"), ("row 2", "no reward")]
