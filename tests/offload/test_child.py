from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.offload.child import ChildProcess, EndedError, import_path

MODULE = """
import os
from agentrl.offload.serving import serve

def answer(question):
    print("noise")
    if question.get("die"):
        os._exit(5)
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


def test_questions_and_answers(child):
    child.start()
    first, second = child.ask({"text": "a\nb \ud800"}), child.ask({"text": ""})
    assert first["text"] == "a\nb \ud800"
    assert first["pid"] == second["pid"] != os.getpid()
    with pytest.raises(TypeError, match="not JSON serializable"):
        child.ask({"what": object()})
    assert child.ask({"text": "still there"})["text"] == "still there"


def test_an_end_in_place_of_an_answer(child):
    child.start()
    with pytest.raises(EndedError, match="ended with status 5"):
        child.ask({"die": True})
    assert not child.alive
    with pytest.raises(EndedError, match="ended with status 5"):
        child.ask({})


HOLDING = """
import sys
sys.path.insert(0, {folder!r})
from agentrl.offload.child import ChildProcess
child = ChildProcess("holding")
child.start()
print(child._process.pid, flush=True)
child.ask({{}})
"""


def test_none_outlives_its_parent_though_it_holds_the_interpreter(tmp_path):
    module = "from agentrl.offload.serving import serve\nserve(lambda: lambda question: 9 ** 9 ** 9)"
    (tmp_path / "holding.py").write_text(module)
    script = HOLDING.format(folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.3)  # for the question to reach it
        parent.kill()
    deadline = time.monotonic() + 5
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_one_that_never_gets_ready():
    child = ChildProcess("agentrl.no_such_module")
    with pytest.raises(EndedError, match="ended with status 1"):
        child.start()
    child.close()


def test_a_function_by_its_place():
    assert import_path(import_path) == "agentrl.offload.child:import_path"
