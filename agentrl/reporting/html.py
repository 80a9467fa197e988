"""HTML pages from templates; text of models and tools is always escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agentrl.security.visible_text import visible


@cache
def html_templates(folder: Path) -> Environment:
    """Load the templates of `folder`. Values are escaped. Characters that reorder or hide text are made visible."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # also makes text valid UTF-8
    )
