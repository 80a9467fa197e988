"""Runs on the nodes of a Ray cluster, here several on one machine: placed, refused, killed, started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import RayCluster, ray_cluster
from sglang_server import require_sglang
from test_several_devices import ROOT, command, metrics, passes_audit

from agentrl.store import TrajectoryStore

TAG = "AGENTRL_TEST"
"""Environment variable by which a test finds the processes of its run."""
REWARD = """
import os, sys
from pathlib import Path
sys.path.append("{example}")
import reward

def compute_score(data_source, solution_str, ground_truth, extra_info):
    name = Path(f"/proc/{{os.getppid()}}/cmdline").read_bytes().split(b"\\0")[0].split(b".")[0].split(b":start")[0]
    with open("{seen}", "ab") as file:
        file.write(name + b"\\n")
    return reward.compute_score(data_source, solution_str, ground_truth, extra_info)
"""
pytestmark = [pytest.mark.slow, pytest.mark.minutes]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster({"CPU": 2}, {"CPU": 2}) as started:
        yield started


def two_nodes(cluster: RayCluster, task_folder: Path, out: Path, *overrides: str) -> list[str]:
    return command(task_folder, out, "trainer.nnodes=2", f"cluster.address={cluster.address}", *overrides)


def ranks_of(tag: str) -> dict[int, int]:
    """Rank -> process id of the ranks of a run."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            text = (folder / "environ").read_text() if folder.name.isdigit() else ""
            program = (folder / "cmdline").read_text() if text else ""
        except OSError:
            continue
        if f"{TAG}={tag}" in text and "agentrl.cli.ranks.run" in program and (rank := re.search(r"\0RANK=(\d+)", text)):
            found[int(rank[1])] = int(folder.name)
    return found


def started(run: list[str], cluster: RayCluster, tag: str) -> subprocess.Popen[str]:
    env = {**cluster.env, TAG: tag}
    return subprocess.Popen(run, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)


def wait_for_the_end(tag: str) -> None:
    """Ranks end by themselves when their launcher is gone."""
    give_up = time.monotonic() + 60
    while ranks_of(tag):
        assert time.monotonic() < give_up
        time.sleep(0.1)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)


def test_a_run_on_two_nodes_is_the_run_on_one(cluster, task_folder, tmp_path):
    """The rewards of the run on two nodes come from processes of a tool worker."""
    (tmp_path / "my_reward.py").write_text(REWARD.format(example=ROOT / "examples/calculator", seen=tmp_path / "seen"))
    subprocess.run(command(task_folder, tmp_path / "one"), cwd=ROOT, check=True)
    scoring = [f"reward.custom_reward_function.path={tmp_path}/my_reward.py", "reward.reward_manager.name=prime"]
    run = two_nodes(cluster, task_folder, tmp_path / "two", "cluster.num_tool_workers=1", *scoring)
    subprocess.run(run, cwd=ROOT, env=cluster.env, check=True)
    assert set((tmp_path / "seen").read_text().split()) == {"ray::ToolWorker"}
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert sorted(two) == [1, 2, 3, 4]
    for name in ("actor/loss", "actor/grad_norm", "actor/lr", "actor/num_tokens"):
        assert two[1][name] == pytest.approx(one[1][name], rel=1e-4, abs=1e-6), name
    assert passes_audit(tmp_path / "two")


def test_impossible_demands_are_refused_at_once(cluster, task_folder, tmp_path):
    run = two_nodes(cluster, task_folder, tmp_path, "trainer.nnodes=5", "trainer.n_gpus_per_node=2")
    done = subprocess.run(run, cwd=ROOT, env=cluster.env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert "'trainer.nnodes=5' needs 5 nodes with 2 CPU, and there are 2" in done.stderr
    assert "together need 10 CPU, and there are 4" in done.stderr
    assert not (tmp_path / "config.yaml").exists()


def test_missing_cluster_is_named(task_folder, tmp_path):
    run = command(task_folder, tmp_path, "trainer.nnodes=2", "cluster.address=127.0.0.1:1")
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "cluster.address" in done.stderr
    assert "Traceback" not in done.stderr


def test_killed_rank_ends_the_run_and_is_named(cluster, task_folder, tmp_path):
    tag = uuid.uuid4().hex
    run = two_nodes(cluster, task_folder, tmp_path, "trainer.total_training_steps=1000")
    with started(run, cluster, tag) as process:
        wait_for(tmp_path / "checkpoints/latest", process)
        os.kill(ranks_of(tag)[1], signal.SIGKILL)
        _, stderr = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "rank 1 (process" in stderr
    assert "was killed by SIGKILL" in stderr
    wait_for_the_end(tag)
    assert passes_audit(tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
def test_interrupt_ends_the_run(cluster, task_folder, tmp_path):
    tag = uuid.uuid4().hex
    run = two_nodes(cluster, task_folder, tmp_path, "trainer.total_training_steps=1000")
    with started(run, cluster, tag) as process:
        wait_for(tmp_path / "checkpoints/latest", process)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=200)
    assert process.returncode == 130
    assert "agentrl: interrupted" in stderr
    wait_for_the_end(tag)


@pytest.mark.nightly
def test_run_continues_after_losing_a_training_node(task_folder, tmp_path):
    tag = uuid.uuid4().hex
    with ray_cluster({"CPU": 0}, {"CPU": 1}, {"CPU": 1}, {"CPU": 1}) as cluster:  # the head cannot be replaced
        run = two_nodes(cluster, task_folder, tmp_path, "trainer.max_restarts=1")
        with started(run, cluster, tag) as process:
            wait_for(tmp_path / "checkpoints/latest", process)
            cluster.kill(node_of(cluster, ranks_of(tag)[1]))
            _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    assert "was lost" in stderr
    assert sorted(metrics(tmp_path)) == [1, 2, 3, 4]
    assert passes_audit(tmp_path)


@pytest.mark.nightly
@pytest.mark.sglang
@pytest.mark.slow
def test_a_lost_rollout_node_is_replaced_and_no_rollout_is_lost_or_doubled(task_folder, tmp_path):
    require_sglang()
    tag = uuid.uuid4().hex
    with ray_cluster({"CPU": 1}, {"CPU": 1}, {"CPU": 1, "rollout": 1}) as cluster:
        options = ["rollout.engine=sglang", "rollout.dtype=float32", "cluster.rollout_resources={rollout: 1}"]
        run = two_nodes(cluster, task_folder, tmp_path, *options, "rollout.sglang.health_timeout_s=5")
        with started(run, cluster, tag) as process:
            wait_for(tmp_path / "checkpoints/latest", process)
            cluster.kill(2)
            cluster.add({"CPU": 1, "rollout": 1})
            _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    assert sorted(metrics(tmp_path)) == [1, 2, 3, 4]
    assert passes_audit(tmp_path)
    store = TrajectoryStore(tmp_path / "trajectories/train")
    for step in range(1, 5):
        groups = store.groups(step)
        assert len({group.uid for group in groups}) == len(groups) == 4, step
        assert {len(group.rollouts) for group in groups} == {4}, step


def node_of(cluster: RayCluster, process: int) -> int:
    """Number of the node whose raylet started a process."""
    return int(cluster.ask(f"node {process}"))


def test_the_worker_group_of_the_docs_runs(cluster, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=cluster.env, capture_output=True, text=True)
    assert done.stdout == "[10, 20, 30]\n", done.stderr


FAILING = """
import asyncio, os, sys, time
from agentrl.cluster.connection import connected
from agentrl.cluster.workers import WorkerGroup

class Worker:
    def __init__(self): self.calls = 0
    def number(self): self.calls += 1; return self.calls
    def fail(self): raise ValueError("wrong row")
    def hang(self): time.sleep(1000)
    def die(self): os._exit(1)

async def main():
    with connected(None):
        group = WorkerGroup(Worker, 2)
        print(await group.call("number"), await group.call("number"))
        try:
            await group.call(sys.argv[1], timeout_s=5)
        except Exception as error:
            print(type(error).__name__, error)

asyncio.run(main())
"""


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("method", "error"), [("fail", "ValueError"), ("hang", "WorkerError"), ("die", "WorkerError")])
def test_one_error_of_a_worker_group_is_raised(cluster, tmp_path, method, error):
    code = tmp_path / "group.py"
    code.write_text(FAILING)
    env = {**cluster.env, "RAY_ADDRESS": cluster.address, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, code, method], env=env, capture_output=True, text=True, timeout=300)
    assert "[1, 1] [2, 2]" in done.stdout, done.stderr
    assert f"{error} " in done.stdout
