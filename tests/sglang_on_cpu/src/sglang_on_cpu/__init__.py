"""SGLang without a GPU: stand-ins for the CUDA-only modules that its CPU path imports and never calls.

They are on the import path only if SGLANG_USE_CPU_ENGINE=1 is in the environment. They come last, so a real module
takes precedence.
"""

from __future__ import annotations

import sys
from pathlib import Path


def use_stand_ins() -> None:
    """Called by sglang_on_cpu.pth at the start of every Python process that has SGLANG_USE_CPU_ENGINE=1."""
    sys.path.append(str(Path(__file__).parent / "stand_ins"))
