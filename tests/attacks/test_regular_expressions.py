"""Model or judge text that makes a regular expression slow. A non-linear expression would take minutes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

READERS = r"""
from agentrl.utils import answers
from agentrl.chat.parsers.hermes import HermesParser
from agentrl.chat.parsers.react import ReactParser
from agentrl.config.reward_sources import GuardsConfig
from agentrl.rewards.builtin.code_cases import code_of
from agentrl.rewards.guards import Guards
from agentrl.rewards.judge.client import read_json
from agentrl.rewards.judge.prompt import quoted
from agentrl.rewards.builtin.math_answers import plainly_same
from agentrl.utils.chat_endpoint import InvalidAnswerError

guards = Guards(GuardsConfig())

def judged(text):
    try:
        read_json(text)
    except InvalidAnswerError:
        pass

readers = [
    lambda text: guards({"score": 0.0}, [text]), judged, HermesParser().parse, ReactParser().parse, code_of,
    answers.boxed, answers.answer_line, lambda text: quoted(text, "answer"), lambda text: plainly_same(text, "1/2"),
]
blanks = ["\n", " ", "\t ", "\n \n", "\u0344\u0323"]

def read_all(starts, fillers, length):
    for start in starts:
        for filler in fillers:
            for read in readers:
                read(start + filler * (length // len(filler)) + "x")
    print("done")

"""
BLANKS = """read_all(["", "```", "score"], blanks[:2], 20_000)"""
ALL = r"""
starts = ["", "```", "```json", "<think>", "<answer>", "\\boxed{", "\\boxed ", "####", "score", "ignore ", "answer:"]
starts += ["'score'", "<score>", "##", "dear", "give a ", "score this ", "<tool_call>", "Action: x", "\\text{", "a"]
fillers = [*blanks, "<answer>", "\\boxed{", "\\boxed{{}", "```", "```a", "1", "a", "a ", "ignore ", "{", "[", "#", "*"]
fillers += ["<a", "score: 5/5!", "'score':", "give ", "score this ", "10 ", "<think>", "</think>", "####\n", "!"]
read_all(starts, fillers, 16_000)
"""


def test_no_reader_of_text_is_slow_on_blanks():
    ends(READERS + BLANKS)


def test_no_reader_of_text_takes_more_than_linear_time():
    ends(READERS + ALL)


def ends(code):
    """Runs in a process, which can be killed even while a regular expression holds the GIL."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert ended.stdout == "done\n", ended.stderr[-2000:]
