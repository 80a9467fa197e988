"""Read task folders and rewards with the package harbor. The first argument is a JSON file:

{"folders": [path, ...], "rewards": [[text of reward.txt or null, text of reward.json or null], ...],
 "steps": [[strategy or null, min_reward, [rewards of a step or null, ...]], ...]}

The last line of the output is JSON: {"folders": [...], "rewards": [...], "steps": [...]}. An entry of folders or
rewards is null if harbor does not accept it. An entry of steps is [whether the last step ends the task, rewards of the
task or null].
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: JSON

os.environ["HARBOR_TELEMETRY"] = "0"

from harbor.models.task.config import TaskConfig
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths
from harbor.models.verifier.result import VerifierResult
from harbor.trial.multi_step import MultiStepTrial
from harbor.verifier.verifier import Verifier


def read(folder: str) -> dict[str, object] | None:
    """Return the values that harbor reads from a task folder; None if harbor does not accept the folder."""
    if not Task.is_valid_dir(Path(folder)):
        return None
    task = Task(Path(folder))
    agent, verifier, environment = task.config.agent, task.config.verifier, task.config.environment
    return {
        "name": task.name,
        "instruction": task.instruction,
        "steps": [[step.name, task.step_instruction(step.name), step.min_reward] for step in task.config.steps or []],
        "strategy": task.config.multi_step_reward_strategy,
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
    """Return the rewards that harbor reads from the files of a verifier; None if harbor fails or finds no reward."""
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
            return VerifierResult(rewards=parse()).rewards or None  # no rewards: the task has no score
        except Exception:  # harbor raises several kinds of errors
            return None


class Steps(SimpleNamespace):
    """Stand-in for harbor's `MultiStepTrial`: the attributes that its reward methods use, without an environment."""

    result_of_trial = MultiStepTrial._select_multi_step_reward
    _aggregate_step_rewards = MultiStepTrial._aggregate_step_rewards


def combined(strategy: str | None, least: Any, found: list[dict[str, float] | None]) -> list[Any]:
    """Return [whether the last step ends the task, the rewards of the task]."""
    results = [SimpleNamespace(verifier_result=each and VerifierResult(rewards=each)) for each in found]
    config = TaskConfig(multi_step_reward_strategy=strategy)
    trial = Steps(task=SimpleNamespace(config=config), result=SimpleNamespace(step_results=results))
    whole = trial.result_of_trial()
    ends = least is not None and MultiStepTrial._min_reward_failure(found[-1], least) is not None
    return [ends, whole and whole.rewards]


asked = json.loads(Path(sys.argv[1]).read_text())
answers = {
    "folders": [read(folder) for folder in asked["folders"]],
    "rewards": [reward(*texts) for texts in asked["rewards"]],
    "steps": [combined(*each) for each in asked["steps"]],
}
print(json.dumps(answers))
