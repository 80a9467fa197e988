"""Pages of HTML from templates, in which what models and tools wrote stays text."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from agentrl.trainer.sample_view import visible


def html_templates(folder: Path) -> Environment:
    """The templates of `folder`. Every value that is printed is escaped, and nothing in it reorders or hides text."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # so all of it is UTF-8, too
    )
