"""Makes the builders of the chat and agent loop tests importable here."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("chat", "agent_loops"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
