"""The examples for SkyPilot, Slurm and KubeRay: their commands are valid, and the Slurm script runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agentrl.cli.compose import compose_config
from agentrl.config.rules.combinations import check_training

FOLDER = Path(__file__).parents[2] / "examples/cluster"
STAND_IN = '#!/bin/bash\necho $(basename $0) "$@" >> $CALLS\n'
GIVEN = ["model.path=m", "data.train_files=x.jsonl", "reward.name=exact_match"]


def kuberay() -> dict:
    return yaml.safe_load((FOLDER / "kuberay.yaml").read_text())


def skypilot() -> dict:
    return yaml.safe_load((FOLDER / "skypilot.yaml").read_text())


def overrides(command: str) -> Iterator[str]:
    """The key=value words of a command, with the number of nodes put in."""
    for word in shlex.split(command.replace("$SKYPILOT_NUM_NODES", "2")):
        if "=" in word and not word.startswith("head="):
            yield word


@pytest.mark.parametrize("command", [kuberay()["spec"]["entrypoint"], skypilot()["run"]], ids=["kuberay", "skypilot"])
def test_the_command_of_an_example_is_valid(command):
    config = compose_config([*GIVEN, *overrides(command)], None, check_training)
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node, config.cluster.address) == (2, 8, "auto")


def test_kuberay_starts_the_nodes_that_the_command_asks_for():
    (workers,) = kuberay()["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in workers["template"]["spec"]["volumes"]}


def test_skypilot_starts_the_nodes_that_the_command_asks_for():
    task = skypilot()
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, "H100:8")


def test_the_slurm_script_starts_ray_on_every_node(tmp_path):
    for name, text in {"srun": STAND_IN, "scontrol": "#!/bin/bash\necho node1\necho node2\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2", "CALLS": str(tmp_path / "calls")}
    env = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", FOLDER / "slurm.sh", "run.yaml", "trainer.n_gpus_per_node=8"], env=env, check=True)
    call = (tmp_path / "calls").read_text().split()
    assert call[:7] == ["srun", "ray", "symmetric-run", "--address", "node1:6379", "--min-nodes", "2"]
    config = compose_config([*GIVEN, *(word for word in call if "=" in word)], None, check_training)
    assert config.trainer.num_processes == 16


@pytest.mark.slow
def test_ray_has_the_command_that_the_examples_use():
    """`ray symmetric-run` starts Ray, runs a command on the head, and stops Ray."""
    done = subprocess.run(
        [Path(sys.executable).parent / "ray", "symmetric-run", "--help"], capture_output=True, text=True
    )
    assert "--min-nodes" in done.stdout
