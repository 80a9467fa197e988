from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.concurrency.child import ChildProcess, EndedError, import_path

MODULE = """
import os, subprocess, time
from agentrl.concurrency.child_main import serve

def answer(question):
    print("noise")
    if question.get("die"):
        os._exit(5)
    if question.get("fork"):
        os.fork()
    if question.get("forge"):
        for pipe in range(3, 30):
            try:
                os.write(pipe, b'{"id": "1", "answer": {"forged": 1}}\\n')
            except OSError:
                pass
    if question.get("flood"):
        return {"text": "x" * question["flood"]}
    if question.get("leave"):
        subprocess.Popen(["sleep", "300"], stdout=question["pipe"], pass_fds=[question["pipe"]])
        os._exit(6)
    if question.get("children"):
        children = [subprocess.Popen(["sleep", "300"]).pid, os.fork()]
        if not children[1]:
            time.sleep(300)
        return {"children": children}
    return {"pid": os.getpid(), **question}

serve(lambda: answer)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    (tmp_path / "answering.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    child = ChildProcess("answering")
    yield child
    child.close()


def test_child_process_answers_questions(child):
    child.start()
    first, second = child.ask({"text": "a\nb \ud800"}), child.ask({"text": ""})
    assert first["text"] == "a\nb \ud800"
    assert first["pid"] == second["pid"] != os.getpid()
    with pytest.raises(TypeError, match="not JSON serializable"):
        child.ask({"what": object()})
    assert child.ask({"text": "still there"})["text"] == "still there"


def test_child_that_exits_instead_of_answering(child):
    child.start()
    with pytest.raises(EndedError, match="ended with status 5"):
        child.ask({"die": True})
    assert not child.alive
    with pytest.raises(EndedError, match="ended with status 5"):
        child.ask({})


def test_forked_copy_of_a_worker_gives_no_answer(child):
    child.start()
    assert child.ask({"fork": True, "n": 1})["n"] == 1
    assert [child.ask({"n": number})["n"] for number in (2, 3, 4)] == [2, 3, 4]


def test_child_that_answers_without_a_request_is_killed(child):
    child.start()
    with pytest.raises(EndedError, match="answered a different question"):
        child.ask({"forge": True})
    assert not child.alive


def test_child_that_floods_the_pipe_is_killed(child, monkeypatch):
    monkeypatch.setattr("agentrl.concurrency.child.MAX_ANSWER_BYTES", 2**20)
    child.start()
    assert len(child.ask({"flood": 1000})["text"]) == 1000
    with pytest.raises(EndedError, match="answered with more than 1 MiB"):
        child.ask({"flood": 2**21})


def test_dead_child_with_an_open_pipe_does_not_block(child):
    child.start()
    sink = _stdout_copy(child._process.pid)
    with pytest.raises(EndedError, match="ended with status 6"):
        child.ask({"leave": True, "pipe": sink})


def _stdout_copy(pid):
    """The file descriptor to which the process writes its answers."""
    folder = Path(f"/proc/{pid}/fd")
    pipes = {int(each.name): str(each.readlink()) for each in folder.iterdir()}
    flags = {number: (folder.parent / "fdinfo" / str(number)).read_text().split()[3] for number in pipes}
    return next(number for number, name in pipes.items() if "pipe" in name and number > 2 and int(flags[number], 8) & 1)


@pytest.mark.parametrize("end", ["close", "die"])
def test_children_of_a_child_process_end_with_it(child, end):
    child.start()
    pids = child.ask({"children": True})["children"]
    if end == "die":
        with pytest.raises(EndedError):
            child.ask({"die": True})
    else:
        child.close()
    _await_end(pids)


HOLDING = """
import sys
sys.path.insert(0, {folder!r})
from agentrl.concurrency.child import ChildProcess
child = ChildProcess("holding")
child.start()
print(child._process.pid, flush=True)
child.ask({{}})
"""


@pytest.mark.slow
def test_child_holding_the_gil_ends_with_its_parent(tmp_path):
    module = "from agentrl.concurrency.child_main import serve\nserve(lambda: lambda question: 9 ** 9 ** 9)"
    (tmp_path / "holding.py").write_text(module)
    script = HOLDING.format(folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.3)  # time for the request to reach the process
        parent.kill()
    _await_end([pid])


def test_children_of_one_end_with_its_parent(tmp_path):
    (tmp_path / "holding.py").write_text(MODULE)
    script = HOLDING.format(folder=str(tmp_path)).replace(
        "child.ask({})", 'print(child.ask({"children": 1})["children"])'
    )
    script = script + "sys.stdout.flush()\nimport time\ntime.sleep(300)\n"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(parent.stdout.readline()), *json.loads(parent.stdout.readline())]
        parent.kill()
    _await_end(pids)


def _await_end(pids):
    deadline = time.monotonic() + 60
    while any(map(_runs, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_child_that_never_becomes_ready():
    child = ChildProcess("agentrl.no_such_module")
    with pytest.raises(EndedError, match="ended with status 1"):
        child.start()
    child.close()


def test_function_by_import_path():
    assert import_path(import_path) == "agentrl.concurrency.child:import_path"
