"""What a command found, as one page of HTML that loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from agentrl.replay.base import Result
from agentrl.replay.cells import cell_text, is_name, is_numeric
from agentrl.replay.saved import SavedRun
from agentrl.trainer.sample_view import visible


def findings_page(run: SavedRun, results: Sequence[Result]) -> str:
    """The page; what models and tools wrote stays text, whatever it is."""
    return _environment().get_template("page.html.j2").render(run=run, results=results)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # every value that is printed passes here, so that nothing reorders or hides text and all of it is UTF-8
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters |= {"cell": cell_text}
    environment.tests |= {"numeric": is_numeric, "name": is_name}
    return environment
