"""SGLang without a GPU: stand-ins for the modules of CUDA-only wheels, which its CPU path imports and never calls.

They are on the path of a process only where SGLANG_USE_CPU_ENGINE=1 is in its environment, and after everything else,
so that a real module wins.
"""

from __future__ import annotations

import sys
from pathlib import Path


def use_stand_ins() -> None:
    """Called by sglang_on_cpu.pth at the start of every Python process that has SGLANG_USE_CPU_ENGINE=1."""
    sys.path.append(str(Path(__file__).parent / "stand_ins"))
