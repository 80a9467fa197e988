"""Processes of tools and rewards on the nodes of a Ray cluster answer, fail and are killed as local ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ray_cluster import ray_cluster

ROOT = Path(__file__).parents[2]
ANSWERING = """
import os, time
from agentrl.concurrency.child_main import serve

def answer(question):
    if question.get("die"):
        os._exit(5)
    time.sleep(question.get("sleep", 0))
    return {"worker": os.getppid(), "key": os.environ.get("MY_API_KEY"), **question}

serve(lambda: answer)
"""
PROGRAM = """
import json, sys, threading, time
from ray.util.placement_group import placement_group
from agentrl.cluster.connection import connected
from agentrl.cluster.tool_workers import ToolWorkers
from agentrl.concurrency.child import EndedError

def show(*values):
    print(json.dumps(values), flush=True)

def outcome(call, *arguments):
    try:
        return call(*arguments)
    except (EndedError, TypeError) as error:
        return [type(error).__name__, str(error)]

def started(number):
    children = [workers.child("answering") for _ in range(number)]
    for child in children:
        child.start()
    return children

with connected(sys.argv[1]):
    group = placement_group([{"CPU": 1}] * 2, "STRICT_SPREAD")
    assert group.wait(60)
    workers = ToolWorkers(group, sys.argv[2], {"MY_API_KEY": "k"})
    first, second = started(2)
    show(first.ask({"text": "a\\nb \\ud800"}), second.ask({"text": ""}))
    show(outcome(first.ask, {"set": {1}}), outcome(first.ask, {"die": True}))
    threading.Timer(0.5, second.kill).start()
    show(outcome(second.ask, {"sleep": 300}), first.alive, second.alive)
    missing = workers.child("no_such_module")
    show(outcome(missing.start), missing.alive)
    kept = started(2)
    show([child.ask({})["worker"] for child in kept])
    sys.stdin.readline()  # the test kills a node
    while all(child.alive for child in kept):
        time.sleep(0.1)
    show([outcome(child.ask, {}) for child in kept if not child.alive])
    show([child.ask({})["worker"] for child in started(2)], [child.ask({})["worker"] for child in kept if child.alive])
"""


@pytest.mark.slow
def test_processes_of_a_tool_worker_answer_end_and_are_killed(tmp_path):
    (tmp_path / "answering.py").write_text(ANSWERING)
    (tmp_path / "program.py").write_text(PROGRAM)
    with ray_cluster({"CPU": 1}, {"CPU": 1}) as cluster:
        command = [sys.executable, "-W", "ignore", "program.py", cluster.address, str(tmp_path)]
        env = {**cluster.env, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, cwd=tmp_path, env=env, text=True, **pipes) as process:

            def shown() -> list:
                return next(json.loads(line) for line in process.stdout if line.startswith("["))

            first, second = shown()
            assert (first["text"], second["text"]) == ("a\nb \ud800", "")
            assert (first["key"], second["key"]) == ("k", "k")
            assert first["worker"] != second["worker"]
            (not_json, _), died = shown()
            assert (not_json, died) == ("TypeError", ["EndedError", "ended with status 5"])
            assert shown() == [["EndedError", "ended with status -9"], False, False]
            assert shown() == [["EndedError", "ended with status 1"], False]
            assert len(set(shown()[0])) == 2
            cluster.kill(1)
            print(file=process.stdin, flush=True)
            assert shown() == [[["EndedError", "was on a node that was lost"]]]
            on_new, on_kept = shown()
            assert set(on_new) == set(on_kept)
            process.communicate()
        assert process.returncode == 0
