"""Train every algorithm on the calculator task from one cold start; print a table, write docs/images/algorithms.svg.

    python benchmarks/algorithms.py [--steps 60] [--only gspo,gae] [--seed 0]

Each run is `agentrl train +experiment=calculator algorithm.name=NAME` with the further keys in ALGORITHMS. Success is
measured on 512 sampled rollouts of held-out tasks, every ten steps. A finished run with the same seed and number of
steps is not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from curves import chart
from vs_trl import ENVIRONMENT, ROOT, start_of

from agentrl.reporting.chart_layout import HEIGHT, WIDTH
from agentrl.reporting.svg import TITLE, document, text

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "dr_grpo": (),
    "rloo": (),
    "reinforce_plus_plus_baseline": (),
    "gspo": (),
    "cispo": (),
    "pairwise": (),
    "rft": (),
    "gae": ("algorithm.lam=0.95", "critic.optim.lr=1e-3", "critic.ppo_epochs=2"),
}
"""algorithm.name -> further keys."""

COLUMNS = 3

Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(ALGORITHMS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/algorithms.svg")
    arguments = parser.parse_args()
    start = start_of("qwen3")
    for name in arguments.only:
        rows = read(train(start, name, arguments.steps, arguments.seed))
        print(line(name, rows), flush=True)
    folders = {name: folder_of(name, arguments.steps, arguments.seed) for name in ALGORITHMS}
    histories = {name: read(folder) for name, folder in folders.items() if is_done(folder)}
    arguments.out.write_text(picture(histories), encoding="utf-8")


def folder_of(name: str, num_steps: int, seed: int) -> Path:
    return ROOT / ".cache/algorithms" / f"{name}-{num_steps}-{seed}"


def is_done(folder: Path) -> bool:
    return (folder / "report.html").exists()


def train(start: Path, name: str, num_steps: int, seed: int) -> Path:
    """Train one run and return its folder."""
    folder = folder_of(name, num_steps, seed)
    if is_done(folder):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    files = [f"data.{split}_files=[{start}/task/{split}.jsonl]" for split in ("train", "val")]
    length = (f"trainer.total_training_steps={num_steps}", "trainer.stop_when=null", f"trainer.seed={seed}")
    where = (f"model.path={start}/sft/checkpoints/latest", f"trainer.default_local_dir={folder}")
    keys = [f"algorithm.name={name}", *ALGORITHMS[name], *files, *length, *where]
    command = [sys.executable, "-m", "agentrl", "train", "+experiment=calculator", *keys]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return folder


def read(folder: Path) -> list[Row]:
    return list(map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))


def success(rows: Iterable[Row]) -> dict[int, float]:
    """Return step -> success on held-out tasks."""
    return {int(row["step"]): row["val/success"] for row in rows if "val/success" in row}


def line(name: str, rows: Sequence[Row]) -> str:
    """Return a row of the table in docs/algorithms.md."""
    found = success(rows)
    above = next((str(step) for step, value in found.items() if value > 0.85), "never")
    keys = ", ".join(f"`{key}`" for key in ALGORITHMS[name])
    return f"| `{name}` | {keys} | {found[0]:.3f} | {above} | {max(found.values()):.3f} | {found[max(found)]:.3f} |"


def picture(histories: Mapping[str, Sequence[Row]]) -> str:
    """Return an SVG with one panel per algorithm; the first algorithm's curve is in the background of each panel."""
    curves = {name: [(step, 0.0, value) for step, value in success(rows).items()] for name, rows in histories.items()}
    first = next(iter(curves))
    body = []
    for number, name in enumerate(curves):
        shown = {name: [curves[name]], **({} if name == first else {first: [curves[first]]})}
        row, column = divmod(number, COLUMNS)
        place = f"translate({column * WIDTH} {row * (HEIGHT + TITLE)})"
        body.append(f'<g transform="{place}">\n{chart(shown, 0, name, "step")}\n</g>')
    height = -(-len(curves) // COLUMNS) * (HEIGHT + TITLE) + TITLE
    caption = text(COLUMNS * WIDTH - 12, height - 8, f"grey: {first}", anchor="end")
    return document(COLUMNS * WIDTH, height, [*body, caption], "Success on held-out tasks by steps")


if __name__ == "__main__":
    main()
