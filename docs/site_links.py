"""A hook of mkdocs: links to files outside `docs/` lead to the repository."""

from __future__ import annotations

import re


def on_page_markdown(markdown: str, config: dict[str, str], **_: object) -> str:
    """The page with `../FILE` in links replaced by the file's address."""
    return re.sub(r"\]\(\.\./([^)]+)\)", rf"]({config['repo_url']}/blob/main/\1)", markdown)
