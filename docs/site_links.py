"""A hook of mkdocs: links to files outside `docs/` lead to the repository."""

from __future__ import annotations

import re


def on_page_markdown(markdown: str, config: dict[str, str], **_: object) -> str:
    """Return the page; in links, the address of the file in the repository replaces `../FILE`."""
    return re.sub(r"\]\(\.\./([^)]+)\)", rf"]({config['repo_url']}/blob/main/\1)", markdown)
