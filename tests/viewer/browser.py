"""The chromium of this machine, driven headless."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launch(play: Playwright) -> Iterator[Browser]:
    path = find()
    assert path, f"none of {', '.join(NAMES)} is installed: make browser"
    sandbox = [] if os.getuid() else ["--no-sandbox"]  # chromium's sandbox refuses to run as root
    browser = play.chromium.launch(executable_path=path, args=sandbox)
    try:
        yield browser
    finally:
        browser.close()
