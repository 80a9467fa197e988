"""Ctrl-C while an event loop runs on the main thread: real signals, in separate processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, signal, threading
from agentrl.concurrency.notebook import call_elsewhere, run_loop

def command():
    assert threading.current_thread() is not threading.main_thread()
    try:
        return run_loop(work())
    except KeyboardInterrupt:
        print("told how to go on", flush=True)
        raise

async def work():
    {before}
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)

async def cell():
    try:
        {call}
    finally:
        print("the cell goes on", flush=True)

{main}
"""
CTRL_C = "os.kill(os.getpid(), signal.SIGINT)"
ENDED = "cleaned up\ntold how to go on\nthe cell goes on\n"
MAINS = {
    "asyncio.run": "asyncio.run(cell())",  # Ctrl-C cancels the task
    "notebook": "asyncio.new_event_loop().run_until_complete(cell())",  # Ctrl-C raises in the main thread
}


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("main", MAINS)
def test_ctrl_c_ends_the_other_thread_first(main: str):
    done = ended(PROGRAM.format(before=CTRL_C, call="call_elsewhere(command)", main=MAINS[main]))
    assert done.stdout == ENDED
    assert done.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.slow
def test_ctrl_c_before_that_thread_has_a_loop():
    early = f"call_elsewhere(lambda: ({CTRL_C}, __import__('time').sleep(0.5), command()))"
    done = ended(PROGRAM.format(before="pass", call=early, main=MAINS["asyncio.run"]))
    assert done.stdout == ENDED


def test_results_and_errors_come_back():
    before = "return 7"
    call = "print(call_elsewhere(command)); call_elsewhere(lambda: int('x'))"
    done = ended(PROGRAM.format(before=before, call=call, main=MAINS["asyncio.run"]))
    assert done.stdout == "7\nthe cell goes on\n"
    assert done.stderr.splitlines()[-1].startswith("ValueError: invalid literal")
    timed_out = "call_elsewhere(lambda: asyncio.run(asyncio.wait_for(asyncio.sleep(9), 0.01)))"
    done = ended(PROGRAM.format(before="pass", call=timed_out, main=MAINS["asyncio.run"]))
    assert done.stderr.splitlines()[-1] == "TimeoutError"


TRAINING = """
import asyncio, os, signal, agentrl
calls = []

def score(solution_str):
    calls.append(solution_str)
    if len(calls) == 9:  # of the third step
        os.kill(os.getpid(), signal.SIGINT)
    return len(solution_str) % 7 / 7

async def cell():
    agentrl.train({model!r}, {rows!r}, reward=score, settings={settings!r})

asyncio.run(cell())
"""


@pytest.mark.slow
def test_training_in_a_notebook_ends_as_on_the_command_line(task_folder: Path, tmp_path: Path):
    settings = {
        "trainer.default_local_dir": str(tmp_path),
        "trainer.total_training_steps": 1000,
        "trainer.save_freq": 1,
        "trainer.logger": ["jsonl"],
        "data.train_batch_size": 2,
        "data.max_prompt_length": 256,
        "data.max_response_length": 8,
        "rollout.n": 2,
    }
    rows = [{"prompt": f"What is {number}+1?", "ground_truth": "1", "data_source": "sums"} for number in range(8)]
    done = ended(TRAINING.format(model=str(task_folder / "model"), rows=rows, settings=settings))
    latest = tmp_path / "checkpoints/latest"
    assert f"'trainer.resume_mode': 'auto'}} resumes from {latest.resolve().name}" in done.stderr
    assert "Traceback" not in done.stderr
    first, last = done.stderr.splitlines()
    assert first.startswith("agentrl: stopping after this step")
    assert last.startswith("agentrl: stopped; ")
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert 2 <= steps[-1] < 10
    assert latest.resolve().name == f"step-{steps[-1]}"
