"""Measure the time to write the rollouts of a step, compared with the step's duration in the run.

    python benchmarks/store_write.py outputs/quickstart/rl [folder]

Each of the last 20 steps of the run is written several times, with its advantages and provenance. Each file is synced
to disk, so the time depends on the folder's disk (default: a temporary folder). The last line shows which
share of a step's duration the run itself spent on writing, according to the run's metrics.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agentrl.algos.credit import samples_of
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.types.sample import Sample

NUM_STEPS, NUM_REPEATS = 20, 5


def samples(store: TrajectoryStore, step: int) -> Iterator[Sample]:
    """Yield the trained samples of a step, in order: one for each trajectory that has advantages."""
    kept = {f"{stored.task.uid}/{stored.number}": stored for stored in store.scan(steps=[step])}
    taken: dict[str, int] = {}
    for sample in samples_of(store.groups(step)):
        stored: StoredRollout = kept[sample.rollout_id]
        trained = [advantages for advantages in stored.advantages if advantages is not None]
        number = taken[sample.rollout_id] = taken.get(sample.rollout_id, -1) + 1
        yield replace(sample, advantages=trained[number])


def write_times_s(store: TrajectoryStore, steps: list[int], folder: Path) -> list[list[tuple[float, float]]]:
    """Return the (wall-clock, CPU) seconds of each write: one list per repeat."""
    loaded = [(step, store.groups(step), list(samples(store, step))) for step in steps]
    target = TrajectoryStore(folder, provenance=store.provenance(steps[0]))
    target.write(*loaded[0])  # the first write loads libraries
    repeats = []
    for _ in range(NUM_REPEATS):
        times = []
        for step, groups, trained in loaded:
            start, used = time.perf_counter(), time.process_time()
            target.write(step, groups, trained)
            times.append((time.perf_counter() - start, time.process_time() - used))
        repeats.append(times)
    size = sum(path.stat().st_size for path in folder.iterdir()) / len(steps)
    same = all(target.groups(step) and _bytes(target, step) == _bytes(store, step) for step in steps)
    print(f"{len(loaded[0][1])} groups per step, {size / 1e3:.0f} kB per file; files read back unchanged: {same}")
    return repeats


def _bytes(store: TrajectoryStore, step: int) -> list[object]:
    return [(one.task, one.rollout.tool_calls, _tokens(one), one.advantages) for one in store.scan(steps=[step])]


def _tokens(stored: StoredRollout) -> list[object]:
    return [(list(trajectory.segments), trajectory.messages) for trajectory in stored.rollout.trajectories]


def measure(run: Path, folder: Path) -> None:
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = [row for row in metrics if "timing_s/step" in row and "timing_s/store" in row]
    step_s = statistics.median(row["timing_s/step"] for row in timed)
    store = TrajectoryStore(run / "trajectories/train")
    repeats = write_times_s(store, store.steps[-NUM_STEPS:], folder)
    print(f"a step of the run: {1e3 * step_s:.0f} ms")
    for name, clock in (("on the clock", 0), ("processor time", 1)):
        medians = sorted(statistics.median(times[clock] for times in repeat) for repeat in repeats)
        low, middle, high = medians[0], statistics.median(medians), medians[-1]
        spread = f"medians of {NUM_REPEATS} repeats: {1e3 * low:.1f} to {1e3 * high:.1f}"
        print(f"a write, {name}: {1e3 * middle:.1f} ms ({spread}), {middle / step_s:.2%} of a step")
    inside = statistics.median(row["timing_s/store"] / row["timing_s/step"] for row in timed)
    print(f"as the run itself measured it: {inside:.2%}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as scratch:
        measure(Path(sys.argv[1]), Path(scratch))
