"""`agentrl quickstart`: train a tiny model from random weights to use a tool, on a CPU, in a few minutes."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from agentrl.cli.compose import compose_config
from agentrl.errors import ConfigError, Kind
from agentrl.telemetry.jsonl import read_metrics
from agentrl.utils.shipped import shipped

OUT = Path("outputs/quickstart")
"""Default output folder. configs/experiment/calculator*.yaml read the task and the initial model from it."""

SAMPLES_PER_TASK = 2
_MARKER = ".quickstart"
_MADE = ("task", "sft", "test_before", "rl", "test_after", "summary.json")
_OVERVIEW = (
    "Creates a task and a tiny model. Trains the model with SFT on demonstrations, then with GRPO.\n"
    "Tests the model after SFT and after GRPO.\n"
    "Takes about five minutes on two CPU cores."
)
_PLAIN = re.compile(r"[\w./-]+")


def quickstart(options: argparse.Namespace) -> None:
    """Make a task, run SFT on demonstrations, then GRPO; test the model after each training; write summary.json."""
    demo = Demo(options.out, options.seed, tuple(options.overrides))
    demo.check()
    with fresh_folder(options.out):
        print(_OVERVIEW)
        summary = demo.run()
        (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print_end(summary, demo.out, demo.files("calculator"))


@dataclass(frozen=True, slots=True)
class Demo:
    """The quickstart's commands.

    Attributes:
        out: output folder of all commands.
        overrides: key=value, added to each training and evaluation.
    """

    out: Path
    seed: int
    overrides: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse invalid overrides before anything is written."""
        if chosen := [each for each in self.overrides if each.lstrip("+").startswith("algorithm.")]:
            raise ConfigError.at(
                "algorithm",
                Kind.NOT_SUPPORTED,
                f"'{chosen[0]}': the quickstart trains with SFT, then GRPO; afterwards run"
                f" `agentrl train +experiment=calculator {chosen[0]}`",
            )
        for experiment in ("calculator_sft", "calculator"):
            compose_config([f"+experiment={experiment}", *self.overrides])

    def run(self) -> dict[str, float]:
        """Run every command and return the content of summary.json."""
        script = str(shipped("examples/calculator/make_task.py"))
        run([sys.executable, script, "--out", str(self.out / "task"), "--seed", str(self.seed)])
        sft_seconds = self.train("calculator_sft", "sft")
        before = self.evaluate("test_before", "sft")
        rl_seconds = self.train("calculator", "rl")
        after = self.evaluate("test_after", "rl")
        task = json.loads((self.out / "task/task.json").read_text(encoding="utf-8"))
        return {
            "success_before": before["val/success"],
            "success_after": after["val/success"],
            "num_test_tasks": int(after["val/num_tasks"]),
            "samples_per_task": SAMPLES_PER_TASK,
            "teacher_share_correct": task["teacher_share_correct"],
            "tool_call_share": after["val/tool_calls/share"],
            "sft_steps": last_step(self.out / "sft/metrics.jsonl"),
            "rl_steps": last_step(self.out / "rl/metrics.jsonl"),
            "sft_seconds": round(sft_seconds, 1),
            "rl_seconds": round(rl_seconds, 1),
            "seed": self.seed,
        }

    def train(self, experiment: str, name: str) -> float:
        """Run an experiment in the folder `name` and return the elapsed seconds."""
        return self.agentrl("train", [f"+experiment={experiment}", *self.files(experiment)], name)

    def evaluate(self, name: str, trained: str) -> dict[str, float]:
        """Evaluate a model on the test tasks, which are never used in training; return the metrics."""
        model, tasks = self.out / trained / "checkpoints/latest", self.out / "task/test.jsonl"
        words = [f"model.path={_value(model)}", f"data.val_files=[{_value(tasks)}]"]
        self.agentrl("eval", ["+experiment=calculator", *words, f"rollout.val_kwargs.n={SAMPLES_PER_TASK}"], name)
        found: dict[str, float] = json.loads((self.out / name / "eval.json").read_text(encoding="utf-8"))
        return found

    def files(self, experiment: str) -> list[str]:
        """Overrides with the file paths of an experiment; empty if the YAML files already contain these paths."""
        if self.out == OUT:
            return []
        model, rows = ("task/model", "sft") if experiment == "calculator_sft" else ("sft/checkpoints/latest", "train")
        return [
            f"model.path={_value(self.out / model)}",
            f"data.train_files=[{_value(self.out / f'task/{rows}.jsonl')}]",
            f"data.val_files=[{_value(self.out / 'task/val.jsonl')}]",
        ]

    def agentrl(self, command: str, words: Sequence[str], name: str) -> float:
        """Run a command of agentrl that writes into the folder `name`, and return the elapsed seconds."""
        where = [f"trainer.default_local_dir={_value(self.out / name)}", f"trainer.seed={self.seed}"]
        return run([sys.executable, "-m", "agentrl", command, *words, *where, *self.overrides])


def _value(path: Path) -> str:
    """A path as a value in Hydra's grammar."""
    return str(path) if _PLAIN.fullmatch(str(path)) else json.dumps(str(path), ensure_ascii=False)


@contextmanager
def fresh_folder(out: Path) -> Iterator[None]:
    """Create `out`, or remove the files of an earlier quickstart in it; lock it against other quickstarts.

    Raises:
        ConfigError: `out` contains other files, cannot be written, or another quickstart is running there.
    """
    with _own_marker(out) as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = f"another quickstart is running in '{out}': wait for it, or give another folder with --out"
            raise ConfigError.keyless(reason) from None
        if earlier := [out / name for name in _MADE if os.path.lexists(out / name)]:
            print(f"Replacing the files of an earlier quickstart in '{out}'.")
        for path in earlier:
            _remove(path)
        yield


def _own_marker(out: Path) -> IO[str]:
    """Open the marker file of a quickstart folder; create it if `out` is new or empty."""
    try:
        if out.exists() and not (out / _MARKER).is_file() and any(out.iterdir()):
            raise ConfigError.keyless(
                f"'{out}' was not made by `agentrl quickstart`: move it away, or give another folder with --out"
            )
        out.mkdir(parents=True, exist_ok=True)
        return (out / _MARKER).open("a")
    except OSError as error:
        raise ConfigError.keyless(f"cannot write to '{out}': {error.strerror}") from None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def run(command: Sequence[str]) -> float:
    """Print and run a Python command; return the elapsed seconds. If the command fails, exit with its status."""
    start_s = time.perf_counter()
    print("\n$", _typed(command), flush=True)
    child = subprocess.Popen(command, env={"OMP_NUM_THREADS": "1", **os.environ})
    try:
        status = child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if status:
        sys.exit(status if status > 0 else 128 - status)  # the command has printed its error
    return time.perf_counter() - start_s


def _typed(command: Sequence[str]) -> str:
    own = command[1:3] == ["-m", "agentrl"]
    return shlex.join(["agentrl", *command[3:]] if own else ["python", *command[1:]])


def last_step(metrics: Path) -> int:
    """The last step in a metrics.jsonl."""
    return int(max(row["step"] for row in read_metrics(metrics)))


def print_end(summary: Mapping[str, float], out: Path, files: Sequence[str]) -> None:
    """Print a short table, and commands that can be pasted into the user's shell.

    Args:
        files: overrides with the file paths of +experiment=calculator.
    """
    title = f"Success on {summary['num_test_tasks']} test tasks, {summary['samples_per_task']} samples each"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE)
    for column in ("training", "success", "steps", "seconds"):
        table.add_column(column, justify="left" if column == "training" else "right")
    for label, when, part in (("SFT on demonstrations", "before", "sft"), ("then GRPO", "after", "rl")):
        steps, seconds = summary[f"{part}_steps"], summary[f"{part}_seconds"]
        table.add_row(label, f"{summary[f'success_{when}']:.1%}", f"{steps}", f"{seconds:.0f}")
    print(flush=True)
    Console(soft_wrap=True).print(table)
    print(f"Results: {out / 'summary.json'}. Next: view the run, audit it, or train with another algorithm:\n")
    program, rl = program_in_shell(), str(out / "rl")
    for words in (["view", rl], ["replay", rl, "audit"]):
        print(" ", program, shlex.join(words))
    print(" ", program, shlex.join(["train", "+experiment=calculator", *files, "algorithm.name=gspo"]))
    activate = Path(sys.executable).with_name("activate")
    if program != "agentrl" and activate.is_file():
        print(f"\n`source {shlex.quote(_short(activate))}` puts `agentrl` on your PATH.")


def program_in_shell() -> str:
    """Return the shell command that starts this installation's `agentrl`."""
    own = Path(sys.executable).with_name("agentrl")
    if "UV_RUN_RECURSION_DEPTH" in os.environ:  # `uv run` changes PATH only for its own command
        return "uv run agentrl"
    if not own.is_file():
        return f"{shlex.quote(sys.executable)} -m agentrl"
    found = shutil.which("agentrl")
    return "agentrl" if found and Path(found).resolve() == own.resolve() else shlex.quote(_short(own))


def _short(path: Path) -> str:
    """Return the path, relative to the current folder if the path is inside this folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
