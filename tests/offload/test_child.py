from __future__ import annotations

import os

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


def test_one_that_never_gets_ready():
    child = ChildProcess("agentrl.no_such_module")
    with pytest.raises(EndedError, match="ended with status 1"):
        child.start()
    child.close()


def test_a_function_by_its_place():
    assert import_path(import_path) == "agentrl.offload.child:import_path"
