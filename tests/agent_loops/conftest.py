"""Makes the builders of the chat tests importable here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "chat"))
