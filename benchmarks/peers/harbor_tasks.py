"""Task folders and rewards as the package harbor reads them. The first argument is a JSON file:

{"folders": [path, ...], "rewards": [[text of reward.txt or null, text of reward.json or null], ...]}

The last line of the output is JSON: {"folders": [...], "rewards": [...]}, each entry null where harbor refuses.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["HARBOR_TELEMETRY"] = "0"

from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths
from harbor.models.verifier.result import VerifierResult
from harbor.verifier.verifier import Verifier


def read(folder: str) -> dict[str, object] | None:
    """What harbor reads from a folder that it accepts."""
    if not Task.is_valid_dir(Path(folder)):
        return None
    task = Task(Path(folder))
    agent, verifier, environment = task.config.agent, task.config.verifier, task.config.environment
    return {
        "name": task.name,
        "instruction": task.instruction,
        "agent": {"timeout_sec": agent.timeout_sec, "user": agent.user},
        "verifier": {"timeout_sec": verifier.timeout_sec, "env": verifier.env, "user": verifier.user},
        "environment": {
            key: getattr(environment, key)
            for key in ("build_timeout_sec", "docker_image", "memory_mb", "workdir", "env", "cpus", "storage_mb")
        }
        | {"os": environment.os.value},
        "solution": {"env": task.config.solution.env},
    }


def reward(text: str | None, json_text: str | None) -> dict[str, float] | None:
    """What harbor reads from the files of a verifier; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        paths = TrialPaths(Path(folder))
        paths.verifier_dir.mkdir(parents=True, exist_ok=True)
        for path, content in ((paths.reward_text_path, text), (paths.reward_json_path, json_text)):
            if content is not None:
                path.write_text(content)
        verifier = object.__new__(Verifier)
        for name in ("trial_paths", "_trial_paths"):
            setattr(verifier, name, paths)
        try:
            parse = verifier._parse_reward_json if paths.reward_json_path.exists() else verifier._parse_reward_text
            return VerifierResult(rewards=parse()).rewards or None  # without a number there is no score
        except Exception:  # of several kinds
            return None


asked = json.loads(Path(sys.argv[1]).read_text())
answers = {
    "folders": [read(folder) for folder in asked["folders"]],
    "rewards": [reward(*texts) for texts in asked["rewards"]],
}
print(json.dumps(answers))
