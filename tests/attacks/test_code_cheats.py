"""Cheating answers to coding tasks must fail; honest answers must still pass."""

from __future__ import annotations

import asyncio

import pytest
from sandbox_fusion_server import sandbox_fusion

from agentrl.config.reward import RewardConfig, SandboxFusionConfig
from agentrl.rewards.builtin.code import CodeReward

ASSERTS = ["assert add(2, 3) == 5", "assert sorted(add([2], [1])) == [1, 2]"]
CHEATS = {
    "nothing": "",
    "marks": "print('\\n' + '0' * 32)",
    "end": "import os; os._exit(0)",
    "exit": "raise SystemExit(0)",
    "source": """
import sys, re, os
for path in ['/proc/self/cmdline', '/proc/%d/cmdline' % os.getppid(), sys.argv[0]]:
    try:
        for mark in re.findall('[0-9a-f]{32}', open(path, errors='replace').read()):
            os.write(1, ('\\n' + mark + '\\n').encode())
    except OSError: pass
""",
    "memory": """
import os, re
parent = os.getppid()
for part in open('/proc/%d/maps' % parent).read().splitlines():
    start, end = (int(each, 16) for each in part.split()[0].split('-'))
    try:
        with open('/proc/%d/mem' % parent, 'rb') as memory:
            memory.seek(start)
            for mark in re.findall(b'[0-9a-f]{32}', memory.read(end - start)):
                open('/proc/%d/fd/1' % parent, 'wb').write(b'\\n' + mark + b'\\n')
    except (OSError, ValueError): pass
""",
    "output": """
import os
open('/proc/%d/fd/1' % os.getppid(), 'w').write('x')
def add(a, b): return None
""",
    "equal to all": """
class All:
    def __eq__(self, other): return True
    def __iter__(self): return iter([])
def add(a, b): return All()
""",
    "builtins": """
import builtins
def sorted(*args): return []
builtins.sorted = sorted
def add(a, b): return a
""",
    "assertion": """
import builtins
class AssertionError(Exception):
    def __new__(cls, *args): return None
builtins.AssertionError = AssertionError
def add(a, b): return 0
""",
    "frames": """
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values()]:
            if isinstance(value, dict) and 'mark' in value:
                print('\\n' + value['mark'])
        frame = frame.f_back
""",
    "protocol": """
import os, json
for pipe in range(3, 30):
    try: os.write(pipe, (json.dumps({'add': 'module'}) + '\\n').encode())
    except OSError: pass
""",
}
HONEST = {
    "def add(a, b): return a + b": ASSERTS,
    "import math\ndef add(a, b):\n    return math.fsum([a, b])": ["assert math.isclose(add(2, 3), 5.0)"],
    "def sum(a, b):\n    return a * b": ["assert sum(10, 15) == 150"],
    "class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n"
    "    def __eq__(self, other): return self.a == other.a\n"
    "def most(pairs): return max(pair.b for pair in pairs)": [
        "assert most([Pair(1, 2), Pair(5, 4)]) == 4",
        "p = Pair(1, 2)\np.a = 7\nassert p.a == 7 and p == Pair(7, 0) and isinstance(p, Pair)",
    ],
    "def clear(items): items[:] = items[1:]; return len(items)": ["x = [1, 2]\nassert clear(x) == 1 and x == [2]"],
    "def squares(n):\n    for i in range(n): yield i * i": ["assert list(squares(3)) == [0, 1, 4]"],
    "def twice(f, x): return f(f(x))": ["assert twice(lambda x: x + 1, 3) == 5"],
    "from collections import Counter\ndef count(x): return Counter(x)": ["assert count('aab') == {'a': 2, 'b': 1}"],
    "def mixed(): return (1, {2}, {(3, 4): b'x'}, 10 ** 5000, 1.5, None, True)": [
        "assert mixed() == (1, {2}, {(3, 4): b'x'}, 10 ** 5000, 1.5, None, True)"
    ],
    "class Bad(ValueError): pass\ndef fail(x):\n    raise Bad('no')": [
        "try:\n    fail(1)\nexcept Bad as error:\n    assert str(error) == 'no'\nelse:\n    assert False",
        "try:\n    fail(1)\nexcept ValueError:\n    pass",
    ],
    "def total(node):\n    return node.value + (total(node.next) if node.next else 0)": [
        "class Node:\n    def __init__(self, value, next=None):\n        self.value, self.next = value, next\n"
        "assert total(Node(1, Node(2))) == 3",
    ],
    "def add(a, b): return a + b\nLIMIT = 7": [
        "def check(candidate):\n    assert candidate(1, LIMIT) == 8\ncheck(add)"
    ],
}


def score(*answers, tests):
    with sandbox_fusion() as (url, _):
        reward = CodeReward(RewardConfig(sandbox_fusion=SandboxFusionConfig(url=url, timeout_s=8.0)))

        async def main():
            fenced = (f"```python\n{answer}\n```" for answer in answers)
            return await asyncio.gather(*(reward("mbpp", answer, tests, {}) for answer in fenced))

        return [each["score"] for each in asyncio.run(main())]


@pytest.mark.slow
@pytest.mark.parametrize("how", CHEATS)
def test_cheating_programs_pass_no_test(how):
    assert score(CHEATS[how], tests=ASSERTS) == [0.0]


@pytest.mark.slow
@pytest.mark.parametrize("code", HONEST, ids=range(len(HONEST)))
def test_correct_answers_pass(code):
    assert score(code, tests=HONEST[code]) == [1.0]


def test_one_honest_answer_and_one_cheat_are_scored():
    assert score("def add(a, b): return a + b", CHEATS["source"], tests=ASSERTS) == [1.0, 0.0]
