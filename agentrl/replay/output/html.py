"""Results of a command as one HTML page without scripts or external resources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment

from agentrl.replay.base import Result
from agentrl.replay.output.cells import cell_text, is_name, is_numeric
from agentrl.replay.saved_run import SavedRun
from agentrl.reporting.html import html_templates


def findings_page(run: SavedRun, results: Sequence[Result]) -> str:
    """Render the page. Text from models and tools is escaped."""
    return _environment().get_template("page.html.j2").render(run=run, results=results)


def _environment() -> Environment:
    environment = html_templates(Path(__file__).parent)
    environment.filters |= {"cell": cell_text}
    environment.tests |= {"numeric": is_numeric, "name": is_name}
    return environment
