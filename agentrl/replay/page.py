"""What a command found, as one page of HTML that loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment

from agentrl.replay.base import Result
from agentrl.replay.cells import cell_text, is_name, is_numeric
from agentrl.replay.saved import SavedRun
from agentrl.trainer.html import html_templates


def findings_page(run: SavedRun, results: Sequence[Result]) -> str:
    """The page; what models and tools wrote stays text, whatever it is."""
    return _environment().get_template("page.html.j2").render(run=run, results=results)


def _environment() -> Environment:
    environment = html_templates(Path(__file__).parent)
    environment.filters |= {"cell": cell_text}
    environment.tests |= {"numeric": is_numeric, "name": is_name}
    return environment
