"""Runs that are killed at a named moment: `python killed_runs.py TASK_FOLDER OUT SCENARIO ...`; one JSON line each.

A scenario is `VARIANT:PHASE=COUNT,PHASE=COUNT,...` and runs in OUT/SCENARIO. The first process kills itself when it
reaches the first phase for the COUNTth time, the next process at the next phase, and so on. The last process is not
killed. `VARIANT:random=SEED` draws phases with counts, and times, until a process ends by itself.

Heavy libraries are imported once; every process is a fork.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO

import torch
from forks import leave, ready_to_fork

from agentrl.backends.torch.backend import TorchBackend
from agentrl.backends.torch.optim import ScheduledOptimizer
from agentrl.cli.main import main
from agentrl.engines.torch.engine import TorchEngine
from agentrl.rollouts.runner import RolloutRunner
from agentrl.telemetry import jsonl

Now = Callable[..., None]
Hook = Callable[[Now], None]

LOOP = """
from agentrl.agent_loops.base import AgentLoop
from agentrl.chat.base import ParsedCall, ParsedTurn

class Asking(AgentLoop):
    async def run(self, task, generate, tools, interaction, sampling):
        '''A model of random weights calls nothing: what it looks up is made of what it said.'''
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        chat.stop = None  # it rambles on to the limit of a turn
        place = sum(chat.trajectory.token_ids) % 97
        await chat.tool_turn(ParsedTurn("", (ParsedCall("look_up", f'{{"place": {place}}}'),)))
        await chat.model_turn()
        return chat.rollout()
"""
TOOL = """
import os, sys, time
from agentrl.tools.function import tool

@tool(deterministic=True)
def look_up(place: int) -> str:
    '''Look up.

    Args:
        place: where.
    '''
    time.sleep(float(os.environ.get("TOOL_S", "0")))
    sys.audit("killed_runs.in_tool")
    return str(place * 7)
"""
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(map(ord, solution_str)) % 11 / 10
"""
SETTINGS: dict[str, object] = {
    "data.train_max_samples": 5,
    "data.val_max_samples": 2,
    "data.train_batch_size": 2,
    "data.max_prompt_length": 96,
    "data.max_response_length": 64,
    "actor.optim.lr": 0.003,
    "actor.optim.lr_scheduler_type": "linear",
    "actor.ppo_mini_batch_size": 1,
    "rollout.n": 2,
    "rollout.deterministic": "true",
    "rollout.multi_turn.max_turn_tokens": 5,
    "trainer.total_training_steps": 5,
    "trainer.test_freq": 2,
    "trainer.save_freq": 2,
    "trainer.save_best": "val/reward/mean",
    "trainer.stop_when": "{metric: val/reward/mean, at_least: 2}",
    "trainer.max_checkpoints_to_keep": 1,
    "trainer.log_val_generations": 2,
    "trainer.logger": "[jsonl]",
}
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "lora": {"model.lora_rank": 4, "model.lora_alpha": 8, "actor.use_kl_loss": "true"},
    "offload": {"actor.param_offload": "true", "actor.optimizer_offload": "true", "actor.ppo_epochs": 2},
    "goal": {"trainer.stop_when": "{metric: val/reward/mean, at_least: 0.1}", "trainer.val_before_train": "false"},
    "slow_tool": {},
    "async": {"trainer.async_save": "true"},
    "gae": {
        "algorithm.name": "gae",
        "algorithm.use_kl_in_reward": "true",
        "algorithm.kl_ctrl": "{type: adaptive, horizon: 10}",
        "critic.ppo_epochs": 2,
        "trainer.critic_warmup": 1,
    },
    "stale": {"trainer.max_staleness": 2, "trainer.over_sampling": 0.5, "trainer.total_training_steps": 7},
}


def calling(owner: object, name: str, of: Callable[..., bool] = lambda *_, **__: True) -> Hook:
    """Hook before a call of `owner.name`."""

    def install(now: Now) -> None:
        real = getattr(owner, name)

        def entered(*args: object, **kwargs: object) -> object:
            if of(*args, **kwargs):
                now()
            return real(*args, **kwargs)

        setattr(owner, name, entered)

    return install


def path(operation: str, name: str, after: bool = False) -> Hook:
    """Hook before or after `path.operation(...)` for a path with a matching name."""

    def install(now: Now) -> None:
        real = getattr(Path, operation)

        def done(self: Path, *args: object, **kwargs: object) -> object:
            if (hit := fnmatch(self.name, name)) and not after:
                now()
            result = real(self, *args, **kwargs)
            if hit and after:
                now()
            return result

        setattr(Path, operation, done)

    return install


def half_a_line(name: str) -> Hook:
    """Hook when a line of that file is half written."""

    def install(now: Now) -> None:
        real = jsonl._sync

        def torn(file: IO[str]) -> None:
            real(file)
            if Path(file.name).name == name:
                now(lambda: os.truncate(file.name, Path(file.name).stat().st_size - 30))

        jsonl._sync = torn

    return install


def half_a_state(now: Now) -> None:
    """Hook when the backend's state is half written."""
    real = torch.save

    def save(state: object, file: Path) -> None:
        real(state, file)
        now(lambda: os.truncate(file, file.stat().st_size // 2))

    torch.save = save


def in_tool(now: Now) -> None:
    sys.addaudithook(lambda event, _: now() if event == "killed_runs.in_tool" else None)


def of_validation(_: object, task: object, *__: object, **___: object) -> bool:
    return str(getattr(task, "uid", "")).startswith("val-")


PHASES: dict[str, Hook] = {
    "rollout": calling(TorchEngine, "generate"),
    "tool": in_tool,
    "update": calling(TorchBackend, "_train_step"),  # every second call is between the mini-batches of a step
    "optimizer": calling(ScheduledOptimizer, "step"),
    "publish": calling(TorchEngine, "load_weights"),
    "validation": calling(RolloutRunner, "run", of_validation),
    "store": path("replace", ".step-*.parquet.partial"),
    "stored": path("replace", ".step-*.parquet.partial", after=True),
    "metrics": half_a_line("metrics.jsonl"),
    "generations": half_a_line("generations.jsonl"),
    "warnings": half_a_line("warnings.jsonl"),
    "checkpoint": calling(torch, "save"),  # the weights are written, the state is not
    "half_a_state": half_a_state,
    "run_state": path("replace", ".run_state.json.partial"),
    "renaming": path("rename", ".step-*.partial"),
    "renamed": path("rename", ".step-*.partial", after=True),
    "linking": path("replace", ".latest.partial"),
    "linked": path("replace", ".latest.partial", after=True),
    "linked_best": path("replace", ".best.partial", after=True),
    "removing": path("rename", "step-?", after=True),
    "half_removed": calling(os, "unlink", lambda name, **to: name == "model.safetensors" and "dir_fd" in to),
    "cutting_metrics": path("replace", "metrics.tmp"),
    "cut_metrics": path("replace", "metrics.tmp", after=True),
    "cutting_generations": path("replace", "generations.tmp"),
    "cutting_rollouts": path("unlink", "step-*.parquet"),
    "cut_rollouts": path("unlink", "step-*.parquet", after=True),
    "samples": path("replace", ".samples.json.partial"),
    "report": path("replace", ".report.html.partial"),
}


def clock(delay_s: float, now: Now) -> None:
    threading.Timer(delay_s, now).start()


def killing(mark: Path, phase: str, count: int) -> Now:
    """A function that kills this process at its `count`th call, and records that in `mark`."""
    lock, calls = threading.Lock(), iter(range(1, 1_000_000))

    def now(last: Callable[[], None] = lambda: None) -> None:
        with lock:
            if next(calls) == count:
                last()
                mark.write_text(phase)
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)

    return now


def arguments(task_folder: Path, folder: Path, variant: str) -> list[str]:
    texts = {"loop": LOOP, "tool": TOOL, "reward": REWARD}
    for name, text in texts.items():
        (task_folder / f"{name}.py").write_text(text)  # next to the data, so that all runs use the same file paths
    given = {
        "model.path": task_folder / "model",
        "data.train_files": task_folder / "train.jsonl",
        "data.val_files": task_folder / "val.jsonl",
        "rollout.agent.default_agent_loop": f"{task_folder}/loop.py:Asking",
        "rollout.multi_turn.function_tool_path": task_folder / "tool.py",
        "reward.custom_reward_function.path": task_folder / "reward.py",
        "trainer.default_local_dir": folder,
        "trainer.resume_mode": "auto",
        **SETTINGS,
        **VARIANTS[variant],
    }
    return ["train", *(f"{key}={value}" for key, value in given.items())]


def life(command: list[str], folder: Path, phase: str = "", count: float = 0) -> dict[str, object]:
    """One process of the run, until it ends or is killed."""
    started, mark, log = time.monotonic(), folder.with_suffix(".hit"), folder.with_suffix(".log")
    mark.unlink(missing_ok=True)
    if not (pid := os.fork()):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        if phase:
            hook = partial(clock, count) if phase == "clock" else PHASES[phase]
            hook(killing(mark, phase, 1 if phase == "clock" else int(count)))
        leave(main(command))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    hit = mark.read_text() if mark.exists() else None
    mark.unlink(missing_ok=True)
    return {"status": status, "asked": phase, "hit": hit, "seconds": time.monotonic() - started}


def kills(text: str) -> Iterator[tuple[str, float]]:
    """(phase, count) of each process that is to be killed."""
    for kill in text.split(","):
        phase, _, count = kill.partition("=")
        if phase == "random":
            yield from random_kills(random.Random(count))
        elif phase:
            yield phase, float(count)


def random_kills(rng: random.Random) -> Iterator[tuple[str, float]]:
    """Random phases that each process reaches several times; half of them are hit on a machine of any speed."""
    often = {"rollout": 20, "tool": 6, "update": 6, "optimizer": 6, "publish": 3, "store": 4, "stored": 4, "metrics": 3}
    for _ in range(7):
        if rng.random() < 0.4:
            yield "clock", rng.uniform(0.2, 1.5)
        else:
            phase = rng.choice(sorted(often))
            yield phase, rng.randint(1, often[phase])


def run(task_folder: Path, folder: Path, scenario: str) -> dict[str, object]:
    """All processes of one run."""
    variant, _, text = scenario.partition(":")
    os.environ["TOOL_S"] = "0.02" if variant in ("slow_tool", "stale") else "0"
    command, lives = arguments(task_folder, folder, variant), list[dict[str, object]]()
    with suppress(StopIteration):
        ends = kills(text)
        while not lives or lives[-1]["status"] == -signal.SIGKILL:
            lives.append(life(command, folder, *next(ends)))
    if not lives or lives[-1]["status"] == -signal.SIGKILL:
        lives.append(life(command, folder))
    return {"scenario": scenario, "folder": str(folder), "lives": lives}


if __name__ == "__main__":
    ready_to_fork()
    task_folder, out = map(Path, sys.argv[1:3])
    for number, scenario in enumerate(sys.argv[3:]):
        print(json.dumps(run(task_folder, out / f"run-{number}", scenario)), flush=True)
