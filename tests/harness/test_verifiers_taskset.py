"""Tasksets of verifiers through a process of their own: rewards, failures, cancelled rollouts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.harness.verifiers import Taskset, taskset
from agentrl.harness.worker_process import MAX_LINE_BYTES
from agentrl.tools.base import InfraError
from agentrl.types.task import Task


@dataclass
class Endpoint:
    base_url: str = "http://127.0.0.1:9/s/KEY/v1"
    model: str = "policy"


@pytest.fixture
def made(monkeypatch):
    """Makes tasksets on the fake bridge, and closes them."""
    monkeypatch.setattr(taskset, "BRIDGE", Path(__file__).with_name("fake_bridge.py"))
    found = []

    def make(name="sums", python=sys.executable, **options):
        found.append(Taskset(python, name, **options))
        return found[-1]

    yield make
    for each in found:
        each.close()


async def until(condition):
    """Wait for the bridge's thread, at most ten seconds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


def row(do="answer", **fields):
    return Task(
        messages=[{"role": "user", "content": "?"}], index=3, extra_info={"verifiers_task": {"do": do, **fields}}
    )


def run(taskset_, *rows):
    async def main():
        return await asyncio.gather(*(taskset_.run(each, Endpoint()) for each in rows))

    return asyncio.run(main())


def test_rewards_reach_the_rollouts_that_asked(made):
    sums = made()
    assert run(sums, *(row(answer={"reward": number / 4}) for number in range(20))) == [n / 4 for n in range(20)]
    assert run(sums, row("hold two"), row("hold two")) == [20.0, 21.0]  # answered in reverse, on another event loop


def test_rows_of_a_taskset(made, tmp_path):
    made({"id": "sums", "num_tasks": 1}).write_rows(tmp_path / "rows.jsonl")
    (found,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert found == {"prompt": "1+1?", "verifiers_task": {"idx": 0}, "data_source": "sums"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "broken"}, "cannot load the taskset: Mod.* no taskset"),
        ({"python": "/none/python"}, "cannot be started: No such"),
    ],
)
def test_a_taskset_that_cannot_be_loaded(made, tmp_path, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        made(**options).write_rows(tmp_path / "rows.jsonl")
    with pytest.raises(InfraError, match=r"no taskset 'broken'|cannot be started: '/none/python'"):
        run(made(**options), row())


def test_a_row_of_another_dataset_is_refused(made):
    with pytest.raises(DataError, match="row 3: no column 'verifiers_task': make rows with"):
        run(made(), Task(messages=[], index=3))


@pytest.mark.parametrize("reward", [None, True, "1", [1]])
def test_a_rollout_without_a_reward_is_dropped(made, reward):
    with pytest.raises(InfraError, match="row 3: verifiers returned no reward: the sandbox is gone"):
        run(made(), row(answer={"reward": reward, "error": "the sandbox is gone"}))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("<html>", "verifiers sent not JSON"),
        ("[1]", "expected a JSON object"),
        ('{"id": 0, "reward": NaN}', "NaN is not JSON"),
        ("[" * 5000, "nested too deeply"),
        ("x" * (MAX_LINE_BYTES + 10), "not JSON"),
    ],
)
def test_nonsense_drops_all_rollouts(made, line, complaint):
    sums = made()
    with pytest.raises(InfraError, match=complaint):
        run(sums, row("hold"), row("raw", line=line))
    with pytest.raises(InfraError, match=complaint):
        run(sums, row(answer={"reward": 1}))


def test_the_end_of_verifiers_drops_all_rollouts_with_its_last_words(made):
    with pytest.raises(InfraError, match="verifiers has ended"):
        run(made(), row("hold"), row("die"))


@pytest.mark.slow
def test_a_start_that_takes_too_long(made):
    with pytest.raises(InfraError, match=r"verifiers did not start in 0\.2 seconds"):
        run(made("silent", start_timeout_s=0.2), row())


def test_a_cancelled_rollout_is_cancelled_there(made):
    sums = made()

    async def main():
        first = asyncio.ensure_future(sums.run(row("hold"), Endpoint()))
        await until(lambda: len(sums._bridge._waiting) == 1)
        second = asyncio.ensure_future(sums.run(row("hold"), Endpoint()))
        await until(lambda: len(sums._bridge._waiting) == 2)
        first.cancel()
        return await second  # the fake bridge answers with the number of the cancelled request

    assert asyncio.run(main()) == 0.0


def test_closing_ends_the_process(made):
    sums = made()
    run(sums, row(answer={"reward": 1}))
    pid = sums._bridge._process.pid
    sums.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
