"""Compare each entry of docs/algorithms.md with verl and TRL: the largest relative difference over random batches.

    python benchmarks/algorithm_agreement.py             # prints the differences
    python benchmarks/algorithm_agreement.py --write     # also updates the columns of docs/algorithms.md

A result is a list of numbers, such as a loss and its gradient with respect to each log-probability, or the advantages
of all trained tokens. The difference of two results is the largest difference between two corresponding numbers,
divided by the largest number of the peer (verl or TRL). docs/algorithms.md lists the known differences of the peers,
with the reasons.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import agreement_advantages
import agreement_losses
from agreement_losses import Case, Numbers
from peers.environment import HERE, peer_python

PAGE = HERE.parents[1] / "docs/algorithms.md"
PEERS = ("verl", "trl")
PARTS = {"losses": agreement_losses, "advantages": agreement_advantages}
Ask = Callable[[str, Path, Path], Sequence[Numbers]]
"""(peer, script, input file) -> the peer's results."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {part: largest(differences(part, run_peer, Path(folder))) for part in PARTS}
    for part, rows in found.items():
        for (row, peer), difference in sorted(rows.items()):
            print(f"{part:10s} {row:28s} {peer:5s} {difference:.1e}")
    if arguments.write:
        PAGE.write_text(refreshed(PAGE.read_text(), found))


def run_peer(peer: str, script: Path, questions: Path) -> Sequence[Numbers]:
    """Run a peer's script in its own environment and return its results."""
    done = subprocess.run([peer_python(peer), script, questions], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def differences(part: str, ask: Ask, folder: Path) -> Iterator[tuple[Case, float]]:
    """Yield every case of a part, with the difference between the peer's result and agentrl's."""
    for peer in PEERS:
        asked = [case for case in PARTS[part].cases() if case.peer == peer]
        questions = folder / f"{part}_{peer}.json"
        questions.write_text(json.dumps({"batches": PARTS[part].BATCHES, "asked": [case.asked for case in asked]}))
        answers = ask(peer, HERE / f"{peer}_{part}.py", questions)
        yield from ((case, relative(case.ours(), theirs)) for case, theirs in zip(asked, answers, strict=True))


def relative(ours: Numbers, theirs: Numbers) -> float:
    """Return the largest difference between corresponding numbers, divided by the peer's largest number."""
    distance = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    return distance / max(max(map(abs, theirs)), 1e-12)


def largest(found: Iterable[tuple[Case, float]]) -> dict[tuple[str, str], float]:
    """Return (row, peer) -> the largest difference of the cases."""
    by_row: dict[tuple[str, str], float] = {}
    for case, difference in found:
        by_row[case.row, case.peer] = max(difference, by_row.get((case.row, case.peer), 0.0))
    return by_row


def refreshed(page: str, found: Mapping[str, Mapping[tuple[str, str], float]]) -> str:
    """Return the page with new figures in the peers' columns, in rows whose first cell names an entry.

    Tables that begin with the word estimator show advantages, others losses. A cell keeps the text after its figure,
    such as the number of a note.
    """
    columns: dict[str, int] = {}
    lines, rows = [], found["losses"]
    for line in page.split("\n"):
        cells = line.split("|")
        if not line.startswith("|"):
            columns = {}
        elif not columns:
            columns = {peer: cells.index(f" {peer} ") for peer in PEERS if f" {peer} " in cells}
            rows = found["advantages" if cells[1] == " estimator " else "losses"]
        elif name := re.match(r" `([^`]+)`", cells[1]):
            for peer in columns.keys() & {peer for row, peer in rows if row == name[1]}:
                figure, note = rows[name[1], peer], re.search(r" \[.*\]", cells[columns[peer]])
                written = f"{figure:.0e}" if figure else "0"
                cells[columns[peer]] = f" {written}{note[0] if note else ''} "
        lines.append("|".join(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
