"""Runs with an environment: equal bit by bit, audited, replayed without the class, and trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from babbling import FORMAT, babble_is_known  # noqa: F401  # the second a fixture
from replayed_runs import refused, replayed, rewritten, stored
from same_run import differences

import agentrl
from agentrl.audit.auditor import Auditor
from agentrl.cli.main import main
from agentrl.config import validate_config
from agentrl.run_folder.saved_environment import ENVIRONMENT_FILE, read_environment
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.run import run_training
from agentrl.types.rollout import Outcome, Stop

EXAMPLE = Path(__file__).parents[2] / "examples/environment"
CASINO = """
import asyncio, random, time

class Casino:
    '''Draws from the seed of the rollout; how long a call takes is never the same.'''

    deterministic = True

    def reset(self, seed, group_seed):
        self.random = random.Random(seed)
        self.left, self.won = random.Random(group_seed).randint(2, 4), 0
        return f" {self.left} coins"

    @property
    def done(self):
        return self.left == 0

    def blocks(self, number: int) -> str:
        'Bet.'
        time.sleep(random.SystemRandom().random() * 0.01)
        return self._bet(number)

    async def waits(self, number: int) -> str:
        'Bet.'
        await asyncio.sleep(random.SystemRandom().random() * 0.01)
        return self._bet(number)

    def _bet(self, number):
        self.left -= 1
        self.won += self.random.randint(0, 9)
        return str(self.won)

    def reward(self):
        return self.won / 9
"""


def gamble(task_folder: Path, folder: Path, run: Path) -> None:
    (folder / "casino.py").write_text(CASINO)
    config = {
        "model": {"path": str(task_folder / "model")},
        "data": {
            "train_files": [str(task_folder / "train.jsonl")],
            "train_max_samples": 12,
            "train_batch_size": 4,
            "max_prompt_length": 400,
            "max_response_length": 240,
        },
        "rollout": {
            "n": 4,
            "deterministic": True,
            "max_num_seqs": 16,
            "multi_turn": {
                "format": FORMAT,
                "environment": f"{folder}/casino.py:Casino",
                "max_assistant_turns": 5,
                "max_turn_tokens": 24,
                "max_parallel_calls": 3,
            },
        },
        "actor": {"optim": {"lr": 1e-3}},
        "reward": {"name": "tool_rewards"},
        "trainer": {"default_local_dir": run, "total_training_steps": 2, "logger": ["jsonl"]},
    }
    run_training(validate_config(config), UserObjects())


@pytest.mark.slow
def test_two_runs_with_a_random_environment_are_equal(task_folder, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for run in (one, other):
        gamble(task_folder, tmp_path, run)
    assert differences(one, other) == []
    assert read_environment(one / ENVIRONMENT_FILE)["reproducible"]
    rollouts = [each.rollout for each in stored(one)]
    assert {Stop.ENVIRONMENT_DONE, Stop.FINISHED} <= {rollout.stop for rollout in rollouts}
    assert len({rollout.reward for rollout in rollouts}) > 3
    assert all(rollout.tool_rewards.keys() == {"Casino"} for rollout in rollouts)
    parallel = [(id(rollout), call.turn) for rollout in rollouts for call in rollout.tool_calls]
    assert len(set(parallel)) < len(parallel)  # several calls in one turn, in the order of the turn


SCRIPT = """
from zlib import crc32

def call(name, **arguments):
    import json
    return '<tool_call>' + json.dumps({"name": name, "arguments": arguments}) + '</tool_call>'

def reply(context):
    takes = [call("take", item="lamp", count=1), call("take", item="book", count=9)]
    kinds = [call("look"), call("ship"), *takes, "Done."]
    return kinds[crc32(context.encode()) % len(kinds)]
"""


OWN_LOOP = """
from agentrl.agent_loops.base import AgentLoop

class Hurried(AgentLoop):
    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        reminded = False
        while turn := await chat.model_turn():
            if turn.calls:
                await chat.tool_turn(turn)
            elif reminded or not chat.say("Go on."):
                break
            else:
                reminded = True
        return chat.rollout()
"""


@pytest.fixture(scope="module")
def shipped(task_folder, tmp_path_factory) -> Path:
    """A folder with a scripted run in the warehouse."""
    return ship(task_folder, tmp_path_factory.mktemp("shipped"))


def ship(task_folder: Path, folder: Path, *overrides: str) -> Path:
    (folder / "script.py").write_text(SCRIPT)
    shutil.copytree(task_folder / "model", folder / "model")
    keys = {
        "model.path": f"{folder}/model",
        "data.train_files": EXAMPLE / "orders.jsonl",
        "data.train_batch_size": 8,
        "data.max_prompt_length": 200,
        "data.max_response_length": 500,
        "rollout.n": 2,
        "rollout.engine": "scripted",
        "rollout.script_path": f"{folder}/script.py:reply",
        "rollout.multi_turn.environment": f"{EXAMPLE}/warehouse.py:Warehouse",
        "rollout.multi_turn.max_assistant_turns": 4,
        "reward.name": "tool_rewards",
        "trainer.default_local_dir": f"{folder}/run",
        "trainer.total_training_steps": 2,
        "trainer.logger": "[jsonl]",
    }
    assert main(["train", *(f"{key}={value}" for key, value in keys.items()), *overrides]) == 0
    return folder


def problems(folder: Path) -> set[str]:
    ledger = Auditor(folder=folder).audit(sorted(folder.rglob("*.parquet")), complete=False)
    assert ledger.findings["messages"].num_checked
    return {name for name, finding in ledger.findings.items() if finding.num_problems}


@pytest.mark.slow
def test_the_audit_passes_and_knows_that_only_an_environment_adds_to_prompts(shipped, tmp_path, capsys):
    run = shipped / "run"
    rollouts = [each.rollout for each in stored(run)]
    assert {Stop.ENVIRONMENT_DONE, Stop.FINISHED} <= {rollout.stop for rollout in rollouts}
    assert {Outcome.OK, Outcome.TOOL_ERROR} <= {call.outcome for rollout in rollouts for call in rollout.tool_calls}
    assert main(["replay", str(run), "audit"]) == 0
    capsys.readouterr()
    assert problems(run) == set()
    without = rewritten(run, tmp_path / "without", provenance=lambda kept: {**kept, "environment": ""})
    assert {"messages", "stop", "rewards"} <= problems(without)

    def change(rollout):
        rollout.trajectories[0].messages[0]["content"] = "Other text. " + rollout.trajectories[0].messages[0]["content"]

    assert "messages" in problems(rewritten(run, tmp_path / "changed", change))


@pytest.mark.slow
def test_the_audit_passes_with_an_own_loop(task_folder, tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN_LOOP)
    run = ship(task_folder, tmp_path, f"rollout.agent.default_agent_loop={tmp_path}/own.py:Hurried") / "run"
    assert {Stop.ENVIRONMENT_DONE, Stop.FINISHED} <= {each.rollout.stop for each in stored(run)}
    assert main(["replay", str(run), "audit"]) == 0
    capsys.readouterr()
    without = rewritten(run, tmp_path / "without", provenance=lambda kept: {**kept, "environment": ""})
    assert {"messages", "stop"} <= problems(without)


@pytest.mark.slow
def test_rollouts_are_replayed_without_the_class(shipped, tmp_path, capsys):
    run = shipped / "run"
    code = ["rollout.engine=scripted", f"rollout.script_path={shipped}/script.py:reply", f"model.path={shipped}/model"]
    (result,) = replayed(capsys, run, "tools", *code, "--out", tmp_path)["results"]
    values = result["values"]
    assert values["num_same"] == values["num_rollouts"] == 32
    assert values["num_unrecorded_calls"] == 0
    ends = [(each.rollout.stop, each.rollout.rewards) for each in stored(run)]
    assert [(each.rollout.stop, each.rollout.rewards) for each in stored(tmp_path / "tools")] == ends
    assert problems(tmp_path) == set()
    named = refused(capsys, run, "tools", *code, "--unrecorded", "live", "--out", tmp_path / "live")
    assert f"rollout.multi_turn.environment={EXAMPLE}/warehouse.py:Warehouse" in named


@pytest.mark.slow
def test_training_from_python_with_a_class(task_folder, tmp_path):
    from agentrl.registry import load_object

    warehouse = load_object(f"{EXAMPLE}/warehouse.py:Warehouse")
    rows = [json.loads(line) for line in (EXAMPLE / "orders.jsonl").read_text().splitlines()]
    settings = {
        "data": {"max_prompt_length": 200, "max_response_length": 64, "train_batch_size": 4},
        "rollout": {"n": 2, "multi_turn.max_turn_tokens": 24},
        "trainer": {"default_local_dir": str(tmp_path / "run"), "total_training_steps": 2, "logger": ["jsonl"]},
    }
    run = agentrl.train(task_folder / "model", rows, environment=warehouse, settings=settings)
    rollouts = [each.rollout for each in stored(run)]
    assert len(rollouts) == 16
    assert all(rollout.reward == rollout.tool_rewards["Warehouse"] > 0 for rollout in rollouts)
