"""Cheating answers to coding tasks must fail; honest answers must still pass."""

from __future__ import annotations

import asyncio

import pytest
from local_sandboxes import require_bubblewrap
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


def score(*answers, tests, sandbox="sandbox_fusion"):
    with sandbox_fusion() as (url, _):
        fusion = {"url": url if sandbox == "sandbox_fusion" else None, "timeout_s": 8.0}
        reward = CodeReward(RewardConfig(sandbox_fusion=SandboxFusionConfig(**fusion)))

        async def main():
            fenced = (f"```python\n{answer}\n```" for answer in answers)
            return await asyncio.gather(*(reward("mbpp", answer, tests, {}) for answer in fenced))

        return [each["score"] for each in asyncio.run(main())]


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("sandbox", ["sandbox_fusion", "local"])
@pytest.mark.parametrize("how", CHEATS)
def test_cheating_programs_pass_no_test(how, sandbox):
    require_bubblewrap()
    assert score(CHEATS[how], tests=ASSERTS, sandbox=sandbox) == [0.0]


STEAL = """
import base64, os, re
found = b""
for process in [name for name in os.listdir('/proc') if name.isdigit()]:
    try:
        for part in open(f'/proc/{process}/maps').read().splitlines():
            start, end = (int(each, 16) for each in part.split()[0].split('-'))
            with open(f'/proc/{process}/mem', 'rb') as memory:
                try:
                    memory.seek(start)
                    found += memory.read(end - start)
                except (OSError, ValueError, MemoryError): pass
    except OSError: pass
    for number in range(20):
        try:
            pipe = os.open(f'/proc/{process}/fd/{number}', os.O_RDONLY | os.O_NONBLOCK)
            found += os.read(pipe, 10**6)
        except OSError: pass
for encoded in re.findall(b'[A-Za-z0-9+/]{40,}', found):
    found += base64.b64decode(encoded[: len(encoded) // 4 * 4])
"""
LATER = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    while True:
        try:
            exec({STEAL!r})
            numbers = re.findall(rb'assert add[(]2, 3[)] == ([0-9]+)', found)
            if numbers: open('/tmp/stolen', 'w').write(numbers[-1].decode())
        except BaseException: pass
def add(a, b):
    time.sleep(3)
    return int(open('/tmp/stolen').read())
"""


NOW = f"{STEAL}\ndef add(a, b): return int(re.findall(rb'add[(]2, 3[)] == ([0-9]+)', found)[0])"


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("answer", [NOW, LATER])
def test_the_expected_values_cannot_be_read_in_a_local_sandbox(answer):
    require_bubblewrap()
    tests = ["assert add(2, 3) == 12345"] * 6
    assert score(answer, tests=tests, sandbox="local") == [0.0]


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("sandbox", ["sandbox_fusion", "local"])
@pytest.mark.parametrize("code", HONEST, ids=range(len(HONEST)))
def test_correct_answers_pass(code, sandbox):
    require_bubblewrap()
    assert score(code, tests=HONEST[code], sandbox=sandbox) == [1.0]


@pytest.mark.slow
def test_one_honest_answer_and_one_cheat_are_scored():
    assert score("def add(a, b): return a + b", CHEATS["source"], tests=ASSERTS) == [1.0, 0.0]
