"""Make the pictures of README and docs from a quickstart run: its success curves, the viewer and the report.

    make pictures          # or: python docs/images/make_pictures.py [--run outputs/quickstart]

The script needs chromium (`make browser`) and the folder that `make quickstart` writes. It takes screenshots of the
viewer and the report in the browser. Each screenshot is taken in the light and in the dark color scheme.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/viewer"))
from browser import launch  # noqa: E402  # in tests/viewer, which the line above adds to sys.path

from agentrl.store import TrajectoryStore  # noqa: E402  # sorted below the import of `browser`

IMAGES = ROOT / "docs/images"
SIZE = {"width": 1280, "height": 760}
DRAWN_MS = 700
"""Milliseconds until visible charts are drawn and texts are loaded."""


def main() -> None:
    """Read the command line and make every picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("outputs/quickstart"))
    parser.add_argument("--out", type=Path, default=IMAGES)
    arguments = parser.parse_args()
    if not (arguments.run / "summary.json").is_file():
        sys.exit(f"{arguments.run}: no quickstart here; run `make quickstart` first")
    arguments.out.mkdir(parents=True, exist_ok=True)
    plot = [sys.executable, str(ROOT / "examples/calculator/plot.py")]
    subprocess.run([*plot, "--run", str(arguments.run), "--out", str(arguments.out / "quickstart.svg")], check=True)
    with sync_playwright() as play, launch(play) as browser:
        for picture in pictures_of(browser, arguments.run, arguments.out):
            print(picture)


def pictures_of(browser: Browser, run: Path, out: Path) -> list[Path]:
    """Take each screenshot in the light and in the dark color scheme; return the paths of the screenshots."""
    report = (run / "rl/report.html").resolve().as_uri()
    group = mixed_group(TrajectoryStore(run / "rl/trajectories/train"))
    command = [sys.executable, "-m", "agentrl", "view", str(run / "rl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            address = re.findall(r"http\S+", server.stdout.readline())[0]
            return [
                path
                for scheme in ("light", "dark")
                for path in (
                    taken(browser, f"{address}#/curves", out, "view-curves", scheme, charts_drawn),
                    taken(
                        browser,
                        f"{address}#/rollouts?split=train&step_max=20",
                        out,
                        "view-rollouts",
                        scheme,
                        texts_read,
                    ),
                    taken(browser, f"{address}#/{group}", out, "view", scheme, siblings_drawn),
                    taken(browser, report, out, "report", scheme, shorten_paths),
                )
            ]
        finally:
            server.terminate()


def taken(browser: Browser, address: str, out: Path, name: str, scheme: str, act: Callable[[Page], object]) -> Path:
    """Open `address`, call `act` on the page, and save a screenshot; return the path of the screenshot."""
    page = browser.new_page(viewport=SIZE, color_scheme="dark" if scheme == "dark" else "light")
    page.goto(address)
    act(page)
    page.wait_for_timeout(DRAWN_MS)
    path = out / f"{name}{'-dark' if scheme == 'dark' else ''}.png"
    page.screenshot(path=path)
    page.close()
    return path


def charts_drawn(page: Page) -> None:
    """Wait for the first chart."""
    page.wait_for_selector(".chart svg")


def shorten_paths(page: Page) -> None:
    """Show the paths of files in the checkout as relative paths."""
    page.evaluate("root => { document.body.innerHTML = document.body.innerHTML.replaceAll(root, '') }", f"{ROOT}/")


def texts_read(page: Page) -> None:
    """Wait for prompts and answers."""
    page.wait_for_function("() => document.querySelector('[data-cell=answer]')?.textContent")


def siblings_drawn(page: Page) -> None:
    """Wait for the frame around the first token that differs from the reference rollout."""
    page.wait_for_selector(".column .differs")


def mixed_group(store: TrajectoryStore) -> str:
    """Return the viewer page of the first group whose first two rollouts have the rewards 0 and 1, in any order.

    The page is the part of the viewer's address after `#/`.
    """
    for step in store.steps:
        for group in store.groups(step):
            first = [rollout.reward for rollout in group.rollouts[:2]]
            if sorted(first) == [0.0, 1.0]:
                return f"siblings?split=train&step={step}&uid={group.uid}"
    sys.exit("no group of this run has one right and one wrong answer in its first two rollouts")


if __name__ == "__main__":
    main()
