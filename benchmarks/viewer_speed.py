"""Measure the response times of `agentrl view` in a headless browser.

    python benchmarks/viewer_speed.py [num_rollouts] [folder]

The script writes 100,000 synthetic rollouts with the store (128 per step: 3 turns, 2 tool calls, about 90 tokens, see
benchmarks/store.py) and starts the server. Times are measured inside the page: from the start of the navigation, the
change of a filter or the click, to the frame in which the rows are drawn. For the time `cold`, the page is opened while
the server still reads the files.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from store import make_groups

from agentrl.store import TrajectoryStore

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/viewer"))
from browser import launch

ROWS_DRAWN = "() => document.querySelector('.row:not(.waiting)') && performance.now()"
ALL_READ = "() => !/reading/.test(document.querySelector('.progress').textContent)"
CHANGE = """([name, value]) => new Promise((done) => {
    const control = document.querySelector(`[name=${name}]`), start = performance.now();
    const scroller = document.querySelector('.scroller');
    control.value = value;
    control.dispatchEvent(new Event(control.tagName === 'SELECT' ? 'change' : 'input'));
    const look = () => {
        const busy = scroller.getAttribute('aria-busy') === 'true';
        return busy || !location.hash.includes(`${name}=`) ? requestAnimationFrame(look)
            : requestAnimationFrame(() => done(performance.now() - start));
    };
    requestAnimationFrame(look);
})"""
SORT = """(column) => new Promise((done) => {
    const start = performance.now(), scroller = document.querySelector('.scroller');
    document.querySelector(`[data-column=${column}] button`).click();
    const look = () => scroller.getAttribute('aria-busy') === 'true' ? requestAnimationFrame(look)
        : requestAnimationFrame(() => done(performance.now() - start));
    requestAnimationFrame(look);
})"""
FILTERS = {"stop": "finished", "tool": "calculator", "outcome": "ok", "step_min": "100", "reward_min": "0.5"}
"""Filter -> value. After a change of `step_min` or `reward_min`, the page waits 120 ms for further typing."""


def write_rollouts(folder: Path, num_rollouts: int) -> None:
    store = TrajectoryStore(folder / "trajectories/train")
    groups = make_groups(0)
    per_step = sum(len(group.rollouts) for group in groups)
    for step in range(-(-num_rollouts // per_step)):
        store.write(step, groups)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "agentrl", "view", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = re.search(r"http\S+", process.stdout.readline())
            assert found
            yield found[0]
        finally:
            process.terminate()


def first_page(page: Page, address: str) -> float:
    """Return the milliseconds from the start of the navigation until the rows are drawn."""
    page.goto("about:blank")
    page.goto(f"{address}#/rollouts")
    return float(page.wait_for_function(ROWS_DRAWN, polling="raf").json_value())


def measure(folder: Path, num_rollouts: int) -> None:
    start = time.perf_counter()
    write_rollouts(folder, num_rollouts)
    print(f"written in {time.perf_counter() - start:.0f} s")
    with sync_playwright() as play, launch(play) as browser, server(folder) as address:
        start = time.perf_counter()
        page = browser.new_page()
        cold = first_page(page, address)
        page.wait_for_function(ALL_READ, timeout=180_000)
        whole_s = time.perf_counter() - start
        warm = statistics.median(first_page(page, address) for _ in range(5))
        print(f"{page.locator('.progress').text_content()}; all files read after {whole_s:.1f} s")
        print(f"first page: {cold:.0f} ms cold, {warm:.0f} ms once all is read")
        for name, value in FILTERS.items():
            times = [page.evaluate(CHANGE, [name, value]) for _ in range(5) if first_page(page, address)]
            print(f"filter {name}: median {statistics.median(times):.0f} ms, worst {max(times):.0f} ms")
        first_page(page, address)
        for column in ("reward", "duration_s", "tokens"):
            times = [page.evaluate(SORT, column) for _ in range(2)]
            print(f"sort by {column}: {max(times):.0f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as kept:
        measure(Path(kept), int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
