"""Runs that a signal ends in a named phase: `python interrupted_runs.py TASK_FOLDER OUT PHASE:SIGNAL ...`.

Prints a JSON line per run. Heavy libraries are imported once; every run is a fork. Each run signals itself inside the
phase, so no test has to wait for the right moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from forks import ready_to_fork

from agentrl.backends.torch.backend import TorchBackend
from agentrl.cli.main import main
from agentrl.concurrency.signals import leave
from agentrl.rewards.functions.function import FunctionReward
from agentrl.weights.publish import Publisher

HANG_S = 600
TOOL = f"""
import os, signal, time
from pathlib import Path
from agentrl.tools.function import tool
if "AT_LOADING" in os.environ:
    os.kill(os.getpid(), int(os.environ["AT_LOADING"]))

@tool
def hang(place: str) -> str:
    '''Hang.

    Args:
        place: where.
    '''
    if number := os.environ.pop("IN_TOOL", None):  # the first call alone
        os.kill(os.getpid(), int(number))
        time.sleep(float(os.environ.get("HANG_S", {HANG_S})))
    return "there"
"""
SCRIPT = """
def reply(context):
    call = '<tool_call>{"name": "hang", "arguments": {"place": "here"}}</tool_call>'
    return "done" if "there" in context else call
"""
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) % 3
"""
VALIDATE = ["trainer.val_before_train=true", "data.val_max_samples=2"]


def before(owner: type, name: str, number: int, times: int = 1, hang_s: float = 0, call: int = 1) -> None:
    """Signal this process when it enters the `call`th call of `owner.name`."""
    real, calls = getattr(owner, name), iter(range(1, 1000))

    def entered(*args: object, **kwargs: object) -> object:
        if next(calls) == call:
            for _ in range(times):
                os.kill(os.getpid(), number)
                time.sleep(0.3)  # as slow as a person; two signals at once would merge into one
            time.sleep(hang_s)
        return real(*args, **kwargs)

    setattr(owner, name, entered)


def in_environment(name: str) -> Callable[[int], None]:
    return lambda number: os.environ.__setitem__(name, str(number))


def short_hang(number: int) -> None:
    os.environ["HANG_S"] = "0.5"
    in_environment("IN_TOOL")(number)


PHASES: dict[str, tuple[Callable[[int], None], list[str]]] = {
    "loading": (in_environment("AT_LOADING"), []),
    "rollout": (short_hang, []),
    "validation": (in_environment("IN_TOOL"), VALIDATE),
    # the first call of the second step
    "scoring": (lambda number: before(FunctionReward, "__call__", number, call=5), []),
    "learning": (lambda number: before(TorchBackend, "_train_step", number, call=2), []),
    "publishing": (lambda number: before(Publisher, "publish", number, call=3), []),
    "saving": (lambda number: before(TorchBackend, "_save", number, call=2), []),
    "twice": (lambda number: before(TorchBackend, "_train_step", number, times=2, hang_s=HANG_S, call=2), []),
}


def arguments(task_folder: Path, folder: Path) -> list[str]:
    given = {
        "model.path": task_folder / "model",
        "data.train_files": task_folder / "train.jsonl",
        "data.val_files": task_folder / "val.jsonl",
        "data.train_max_samples": 4,
        "data.train_batch_size": 2,
        "data.max_response_length": 256,
        "rollout.n": 2,
        "rollout.engine": "scripted",
        "rollout.script_path": f"{folder}/script.py:reply",
        "rollout.agent.default_agent_loop": "tool_agent",
        "rollout.multi_turn.function_tool_path": folder / "tool.py",
        "reward.custom_reward_function.path": folder / "reward.py",
        "trainer.default_local_dir": folder / "run",
        "trainer.total_training_steps": 3,
        "trainer.val_before_train": "false",
        "trainer.save_freq": 1,
        "trainer.logger": "[jsonl]",
    }
    for name, text in (("script", SCRIPT), ("tool", TOOL), ("reward", REWARD)):
        (folder / f"{name}.py").write_text(text)
    return ["train", *(f"{key}={value}" for key, value in given.items())]


def run(task_folder: Path, folder: Path, phase: str, number: signal.Signals) -> dict[str, object]:
    """Fork, run, and report how the run ended."""
    folder.mkdir(parents=True)
    hook, overrides = PHASES[phase]
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        if not (pid := os.fork()):
            os.dup2(said.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            hook(number)
            leave(main([*arguments(task_folder, folder), *overrides]))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        text = said.read().decode()
    latest = folder / "run/checkpoints/latest"
    return {
        "phase": phase,
        "signal": number,
        "status": status,
        "said": text.splitlines(),
        "seconds": time.monotonic() - started,
        "latest": latest.resolve().name if latest.exists() else None,
        "folder": str(folder / "run"),
    }


if __name__ == "__main__":
    ready_to_fork()
    task_folder, out = map(Path, sys.argv[1:3])
    for case in sys.argv[3:]:
        phase, name = case.split(":")
        print(json.dumps(run(task_folder, out / case, phase, signal.Signals[name])), flush=True)
