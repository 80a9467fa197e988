"""The reward `code` in sandboxes of this machine."""

from __future__ import annotations

import asyncio

import pytest
from fake_containers import FakeDaemon
from local_sandboxes import require_bubblewrap

from agentrl.config.reward import CustomRewardConfig, RewardConfig
from agentrl.errors import ConfigError
from agentrl.rewards.base import close_reward
from agentrl.rewards.loading import load_reward
from agentrl.sandboxes.docker.provider import ContainerProvider
from agentrl.tools.base import InfraError

DOUBLES = {"inputs": ["1\n", "2\n", "30\n", "4\n", "5\n", "6\n"], "outputs": ["2\n", "4\n", "60", "8", "10", "12"]}
CALLS = {"inputs": ["1\n2", "[1]\n[2]"], "outputs": ["3", [[1, 2]]], "fn_name": "add"}
ASSERTS = {"assert_case": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    found = FakeDaemon(tmp_path / "daemon")
    monkeypatch.setenv("PATH", found.path)
    return found


def scores(*answers, truth, sandbox="local", kwargs=None, **options):
    require_bubblewrap()
    custom = CustomRewardConfig(reward_kwargs={"timeout_s": 30, **(kwargs or {})})
    config = RewardConfig(name="code", sandbox=sandbox, custom_reward_function=custom, **options)

    async def main():
        reward = load_reward(config)
        fenced = [f"```python\n{answer}\n```" for answer in answers]
        found = await asyncio.gather(*(reward("apps", each, truth, {"index": 3}) for each in fenced))
        close_reward(reward)
        return [each["score"] for each in found]

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("sandbox", ["local", {"kind": "docker", "max_running": 3}])
def test_the_score_is_the_share_of_passed_tests(daemon, sandbox):
    right, some = "print(2 * int(input()))", "n = int(input())\nprint(2 * n if n < 4 else n)"
    found = scores(right, some, "print(2 *", "raise ValueError", truth=DOUBLES, sandbox=sandbox)
    assert found == [1.0, 1 / 3, 0.0, 0.0]
    assert daemon.containers() == {}


@pytest.mark.slow
def test_functions_and_assertions_are_tested():
    add, wrong = "def add(a, b):\n    print('noise')\n    return a + b", "def add(a, b):\n    return 3"
    assert scores(add, wrong, "import os; os._exit(0)", truth=CALLS) == [1.0, 0.5, 0.0]
    assert scores(add, wrong, "import os; os._exit(0)", truth=ASSERTS) == [1.0, 0.5, 0.0]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "code",
    ["while True: pass", "print('x' * 10**10)", "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"],
)
def test_a_program_that_breaks_its_sandbox_fails_its_test_alone(code):
    broken = f"n = int(input())\nif n == 30:\n    {code}\nprint(2 * n)"
    assert scores(broken, truth=DOUBLES, kwargs={"timeout_s": 2}) == [5 / 6]


def test_a_sandbox_that_fails_leaves_no_score(daemon, monkeypatch):
    async def passed(self):
        daemon.fault("run", "says docker: Error response from daemon: no space left on device.")

    monkeypatch.setattr(ContainerProvider, "check", passed)
    with pytest.raises(InfraError, match=r"reward 'code' .*row 3\): a sandbox did not start: .*no space left"):
        scores("print(1)", truth=DOUBLES, sandbox="docker")


def test_a_sandbox_that_cannot_be_used_ends_the_run(daemon):
    daemon.fault("daemon", "dead")
    with pytest.raises(ConfigError, match=r"reward\.sandbox: 'docker ps' failed: Cannot connect") as caught:
        scores("print(1)", truth=DOUBLES, sandbox="docker")
    assert [problem.key for problem in caught.value.problems] == ["reward.sandbox"]


@pytest.mark.parametrize(
    ("sandbox", "message"),
    [
        ("locl", r"reward\.sandbox: unknown sandbox 'locl': did you mean 'local'"),
        ({"kind": "local", "memory": 3}, r"reward\.sandbox: 'memory'"),
        ({"kind": "local", "prewarm": 3}, r"reward\.sandbox: 'prewarm' has no effect"),
        ({"memory_mb": 3}, r"reward\.sandbox: 'sandbox' must be a name, or a mapping with 'kind'"),
    ],
)
def test_mistakes_in_the_setting_are_named(sandbox, message):
    with pytest.raises(ConfigError, match=message):
        load_reward(RewardConfig(name="code", sandbox=sandbox))


def test_other_languages_need_sandbox_fusion():
    custom = CustomRewardConfig(reward_kwargs={"language": "cpp"})
    with pytest.raises(ConfigError, match=r"language=cpp needs the sandbox sandbox_fusion"):
        load_reward(RewardConfig(name="code", custom_reward_function=custom))
