from __future__ import annotations

import asyncio
import json

import pytest
from sandbox_fusion_server import sandbox_fusion

from agentrl.config.reward import CustomRewardConfig, RewardConfig
from agentrl.errors import ConfigError, DataError, RewardError
from agentrl.rewards.base import close_reward
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.sandboxes.sandbox_fusion import client
from agentrl.tools.base import InfraError
from agentrl.types.task import Task
from agentrl.utils import retries

DOUBLE = "```python\nprint(2 * int(input()))\n```"
DOUBLES = {"inputs": ["1\n", "2\n", "30\n", "4\n"], "outputs": ["2\n", "4\n", "60", "8"]}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)


def config(url, *, kwargs=None, **options):
    custom = CustomRewardConfig(reward_kwargs=kwargs or {})
    return RewardConfig(name="code", custom_reward_function=custom, sandbox_fusion={"url": url, **options})


def score(url, solution, truth, **options):
    async def main():
        reward = load_reward(config(url, **{"timeout_s": 50, **options}))  # a program starts slowly on a busy machine
        answer = await reward("apps", solution, truth, {"index": 3})
        close_reward(reward)
        return answer

    return asyncio.run(main())


@pytest.mark.slow
def test_reward_is_the_share_of_passed_tests():
    right, half = {"score": 1.0, "passed_all": 1.0}, {"score": 0.5, "passed_all": 0.0}
    only_small = "```python\nn = int(input())\nprint(2 * n if n < 3 else n)\n```"
    with sandbox_fusion() as (url, behaviour):
        assert score(url, DOUBLE, json.dumps(DOUBLES), memory_limit_mb=512, timeout_s=7) == right
        assert score(f"{url}/run_code", only_small, DOUBLES) == half
        assert score(url, only_small, DOUBLES, kwargs={"continuous": False})["score"] == 0.0
        assert score(url, only_small, DOUBLES, kwargs={"max_cases": 2}) == right
        # the answer has no code block
        assert score(url, "print(2 * int(input()))", DOUBLES) == {"score": 0.0, "passed_all": 0.0}
    first = behaviour.requests[0]
    assert (first["memory_limit_MB"], first["run_timeout"], first["language"]) == (512, 7, "python")


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("code", "share"),
    [
        ("def add(a, b):\n    return a + b", 1.0),
        ("class Solution:\n    def add(self, a: List[int], b) -> Optional[int]:\n        return a + b", 1.0),
        ("def add(a, b):\n    print('noise')\n    return 3", 0.5),
        ("def plus(a, b):\n    return a + b", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("def add(a, b): exit()", 0.0),
    ],
)
def test_code_tests_by_calls_are_run(code, share):
    truth = {"inputs": ["1\n2", "[1]\n[2]"], "outputs": ["3", [[1, 2]]], "fn_name": "add"}
    with sandbox_fusion() as (url, _):
        assert score(url, f"```python\n{code}\n```", truth)["score"] == share


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("code", "share"),
    [
        ("def add(a, b):\n    return a + b", 1.0),
        ("def add(a, b):\n    return 3", 0.5),
        ("import sys\nsys.exit(0)", 0.0),  # exits with status 0, but before the test does
    ],
)
def test_code_tests_by_assertions_are_run(code, share):
    truth = {"assert_case": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
    with sandbox_fusion() as (url, _):
        assert score(url, f"```python\n{code}\n```", truth)["score"] == share


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "code",
    ["while True: pass", "raise SystemExit(1)", "1 +", "print('x' * 10**10)", "import os; os.kill(os.getpid(), 9)"],
)
def test_programs_that_fail_do_not_pass(code):
    with sandbox_fusion() as (url, _):
        found = score(url, f"```python\n{code}\n```", {"inputs": ["1"], "outputs": ["1"]}, timeout_s=0.5)
    assert found == {"score": 0.0, "passed_all": 0.0}


def test_code_that_does_not_compile_is_tried_once():
    with sandbox_fusion() as (url, behaviour):
        assert score(url, "```cpp\nint main() {\n```", DOUBLES, kwargs={"language": "cpp"})["score"] == 0.0
    assert len(behaviour.requests) == 1


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("fault", [429, "hang", 500, 502, "garbage", "error", 504])
def test_a_failing_server_is_retried(fault, monkeypatch):
    monkeypatch.setattr(client, "_MARGIN_S", 0.0)  # an answer may take four seconds
    with sandbox_fusion(fault, fault) as (url, behaviour):
        assert score(url, DOUBLE, DOUBLES, timeout_s=2.0)["score"] == 1.0
    assert len(behaviour.requests) == 6


def test_persistent_server_errors_are_infra_errors():
    for faults in ([503] * 4, ["error"] * 4, ["garbage"] * 4, ["no output"] * 4):
        with (
            sandbox_fusion(*faults) as (url, _),
            pytest.raises(InfraError, match=r"reward 'code' .*row 3\): the sandbox http://127.*4 tries failed"),
        ):
            score(url, DOUBLE, DOUBLES)
    with pytest.raises(ConfigError, match=r"sandbox_fusion\.url: .*4 tries failed, last error: Client\w*Error"):
        score(url, DOUBLE, DOUBLES)  # the server has stopped


def test_one_failed_test_of_many_leaves_no_score():
    good_then_bad: list[int | str] = ["", *[503] * 12]
    with sandbox_fusion(*good_then_bad) as (url, _), pytest.raises(InfraError, match="4 tries failed"):
        score(url, DOUBLE, DOUBLES)


def test_retry_after_header_is_respected(monkeypatch):
    pauses = []
    sleep = asyncio.sleep

    async def noted(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    with sandbox_fusion(429, 429, headers={"Retry-After": "3"}) as (url, _):
        score(url, DOUBLE, {"inputs": ["1"], "outputs": ["2"]})
    assert pauses == pytest.approx([3.0, 3.0], abs=0.5)


def test_address_without_a_sandbox_ends_the_run():
    with (
        sandbox_fusion() as (url, _),
        pytest.raises(ConfigError, match=r"reward\.sandbox_fusion\.url: http.*/v2/run_code answers 404"),
    ):
        score(f"{url}/v2", DOUBLE, DOUBLES)


@pytest.mark.slow
def test_number_of_parallel_programs_is_limited():
    async def main(url):
        reward = load_reward(config(url, max_concurrent=2))
        await asyncio.gather(*(reward("apps", DOUBLE, DOUBLES, {}) for _ in range(3)))
        close_reward(reward)

    with sandbox_fusion() as (url, behaviour):
        asyncio.run(main(url))
    assert len(behaviour.requests) == 12
    assert behaviour.most_running == 2


def test_rows_of_code_are_refused_without_a_sandbox():
    with pytest.raises(ConfigError, match=r"'code' runs programs that the model wrote: set reward\.sandbox=local"):
        load_reward(RewardConfig(name="code", sandbox=None))
    with pytest.raises(DataError, match=r"data_source 'apps' needs to run code: set reward\.sandbox=local"):
        check_data_source(RewardConfig(sandbox=None), Task([], data_source="apps"))
    check_data_source(RewardConfig(sandbox=None, sandbox_fusion={"url": "http://there"}), Task([], data_source="apps"))
    check_data_source(RewardConfig(), Task([], data_source="apps"))
    with pytest.raises(DataError, match="row 3: data_source 'apps' needs to run code"):
        asyncio.run(load_reward(RewardConfig(sandbox=None))("apps", DOUBLE, DOUBLES, {"index": 3}))


def test_tests_that_cannot_be_used_name_the_row():
    with pytest.raises(RewardError, match=r"row 3\): the tests in the ground truth cannot be used: there is no test"):
        score("http://there", DOUBLE, {"inputs": [], "outputs": []})
    with pytest.raises(RewardError, match=r"cannot be used: the text is neither JSON nor Python \('\[' was never"):
        score("http://there", DOUBLE, '{"inputs": ["1"')


@pytest.mark.slow
def test_lone_surrogates_reach_the_sandbox():
    with sandbox_fusion() as (url, _):
        assert score(url, f"{DOUBLE}\n```python\nprint('\ud800')\n```", DOUBLES)["score"] == 0.0
