"""Files shipped with agentrl besides its code: configs/ and examples/."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped(path: str) -> Path:
    """Return the absolute path of a file such as `examples/calculator/tool.py`, in the wheel or in the checkout."""
    package = Path(str(files("agentrl")))
    inside = package / path
    return inside if inside.exists() else package.parent / path
