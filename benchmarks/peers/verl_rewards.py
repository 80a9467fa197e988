"""Score answers with verl's reward functions. Runs in verl's virtual environment.

python verl_rewards.py QUESTIONS     ->     JSON: one list with the score of each question
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import types
from pathlib import Path

FOLDER = Path(importlib.util.find_spec("verl").origin).parent / "utils/reward_score"


def load(name: str) -> types.ModuleType:
    """Import one file of verl's rewards without importing the package verl, because that import takes long."""
    spec = importlib.util.spec_from_file_location(f"peer_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    modules = {name: load(name) for name in {name for name, *_ in asked}}
    scores = []
    with contextlib.redirect_stdout(io.StringIO()):  # some reward functions print
        for name, text, truth, kwargs in asked:
            try:
                said = modules[name].compute_score(text, truth, **kwargs)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            scores.append(said["score"] if isinstance(said, dict) else said)
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
