"""Runs of the agent loops `compaction` and `sub_agent`: trained, resumed, audited, replayed, and equal bit by bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from babbling import Babble, blocks, clock, ended, waits
from replayed_runs import CALCULATOR, replayed, stored
from safetensors.torch import load_file
from same_run import compare, differences

from agentrl.audit.auditor import Auditor
from agentrl.chat.base import ParsedCall
from agentrl.chat.parsers import tool_parsers
from agentrl.cli.main import main
from agentrl.config import validate_config
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.run import run_training
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Rollout

SCRIPT = """
from zlib import crc32

def call(name, **arguments):
    import json
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"

def reply(context):
    number = crc32(context.encode())
    if context.endswith("Summarise.<|im_end|>\\n<|im_start|>assistant\\n"):
        return ["So far: %d" % (number % 5), "It is 7", call("calculator", expression="1+1"), " "][number % 4]
    answers = [call("calculator", expression="%d+1" % (number % 9)), "The answer is %d" % (number % 4)]
    started = call("delegate", task="What is %d?" % (number % 7)) + call("delegate", task="What is 9?")
    return [*answers, started if '"delegate"' in context else answers[0]][number // 7 % 3]
"""
OWN = {
    "compaction": {"compaction.share": 0.04, "compaction.instruction": "Summarise.", "compaction.max_compactions": 2},
    "sub_agent": {"max_parallel_calls": 3, "sub_agent.max_assistant_turns": 2},
}
LOOPS = list(OWN)


def keys(loop: str, task_folder: Path, folder: Path) -> list[str]:
    own = [f"rollout.multi_turn.{name}={value}" for name, value in OWN[loop].items()]
    return [
        f"model.path={task_folder}/model",
        f"data.train_files=[{task_folder}/train.jsonl]",
        *("data.train_max_samples=6", "data.train_batch_size=3", "rollout.n=4"),
        *("data.max_prompt_length=500", "data.max_response_length=400"),
        *("rollout.engine=scripted", f"rollout.script_path={folder}/script.py:reply"),
        f"rollout.multi_turn.function_tool_path={CALCULATOR}/tool.py",
        *(f"rollout.agent.default_agent_loop={loop}", "rollout.multi_turn.max_assistant_turns=5"),
        *("reward.name=exact_match", *own),
    ]


def train(given: list[str], run: Path, num_steps: int) -> None:
    own = f"trainer.default_local_dir={run}", f"trainer.total_training_steps={num_steps}"
    assert main(["train", *given, *own, "trainer.resume_mode=auto", "trainer.logger=[jsonl]"]) == 0


@pytest.mark.slow
def test_a_step_on_rollouts_with_sub_agents_passes_the_audit(task_folder, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    train(keys("sub_agent", task_folder, tmp_path), tmp_path / "run", 1)
    rollouts = [each.rollout for each in stored(tmp_path / "run")]
    assert max(len(each.trajectories) for each in rollouts) > 2
    ledger = Auditor("train", folder=tmp_path / "run").audit((tmp_path / "run/trajectories/train").iterdir())
    assert [name for name, found in ledger.findings.items() if found.num_problems or found.uncheckable] == []


@pytest.fixture(scope="module", params=LOOPS)
def runs(request, task_folder, tmp_path_factory):
    """(folder, keys): the run `whole`, and the run `halves` that was resumed after its first step."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "script.py").write_text(SCRIPT)
    given = keys(request.param, task_folder, folder)
    for name, num_steps in (("whole", 2), ("halves", 1), ("halves", 2)):
        train(given, folder / name, num_steps)
    return folder, given


@pytest.mark.slow
def test_a_resumed_run_has_the_tokens_advantages_and_weights_of_an_uninterrupted_one(runs, task_folder):
    folder, _ = runs
    one, other = (
        [(each.task.uid, each.advantages, [one.token_ids for one in each.rollout.trajectories]) for each in stored(run)]
        for run in (folder / "whole", folder / "halves")
    )
    assert one == other
    one, other = (load_file(folder / name / "checkpoints/latest/model.safetensors") for name in ("whole", "halves"))
    assert all(one[name].equal(other[name]) for name in one)
    before = load_file(task_folder / "model/model.safetensors")
    assert not all(one[name].equal(before[name]) for name in one)


@pytest.mark.slow
def test_the_audit_passes(runs, capsys):
    folder, _ = runs
    (audited,) = replayed(capsys, f"{folder}/whole", "audit")["results"]
    assert not audited["failed"]
    assert max(len(each.rollout.trajectories) for each in stored(folder / "whole")) > 2


@pytest.mark.slow
def test_replayed_rollouts_have_the_saved_tokens(runs, capsys, tmp_path):
    folder, given = runs
    words = [f"{folder}/whole", "tools", "--unrecorded", "error", *given, "--reward", "exact_match"]
    (result,) = replayed(capsys, *words, "--out", tmp_path)["results"]
    assert (result["values"]["num_same"], result["failed"]) == (24, False)
    (audited,) = replayed(capsys, f"{tmp_path}/tools", "audit")["results"]
    assert not audited["failed"]


@pytest.mark.slow
def test_continuing_from_a_turn_skips_rollouts_with_several_conversations(runs, capsys, tmp_path):
    folder, given = runs
    words = [f"{folder}/whole", "from-turn", "0", *given, "--reward", "exact_match", "--out", tmp_path]
    (result,) = replayed(capsys, *words)["results"]
    several = sum(len(each.rollout.trajectories) > 1 for each in stored(folder / "whole"))
    assert result["values"]["left_out"] == {"rewrote their history": several}


class BabblingAgents(Babble):
    """Calls of a model with random weights, some of which start a sub-agent."""

    def _call(self, number: int) -> ParsedCall:
        if number % 3 == 0:
            return ParsedCall("delegate", json.dumps({"task": f"Part {number % 100}"}))
        return super()._call(number)


@pytest.fixture(scope="module")
def babbling():
    tool_parsers.register("babbling_agents")(BabblingAgents)
    yield "babbling_agents"
    del tool_parsers._objects["babbling_agents"]


def sampled_run(task_folder: Path, folder: Path, loop: str, parser: str, seed: int) -> list[str]:
    """A run with the embedded engine; its tools take as long as `seed` says. Returns the order in which calls ended."""
    own = {"compaction": {"share": 0.3, "instruction": "Sum up."}, "sub_agent": {"max_assistant_turns": 2}}
    limits = {"format": parser, "max_assistant_turns": 6, "max_turn_tokens": 24, "max_parallel_calls": 3}
    (folder.parent / "reward.py").write_text(
        "from zlib import crc32\n\n\ndef compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return crc32(solution_str.encode()) % 5 / 4\n"
    )
    config = validate_config(
        {
            "model": {"path": str(task_folder / "model")},
            "data": {
                "train_files": [str(task_folder / "train.jsonl")],
                "train_max_samples": 8,
                "train_batch_size": 4,
                "max_prompt_length": 600,
                "max_response_length": 300,
            },
            "rollout": {
                "n": 4,
                "deterministic": True,
                "max_num_seqs": 16,
                "agent": {"default_agent_loop": loop},
                "multi_turn": {**limits, loop: own[loop]},
            },
            "actor": {"optim": {"lr": 1e-3}},
            "reward": {"custom_reward_function": {"path": folder.parent / "reward.py"}},
            "trainer": {
                "default_local_dir": folder,
                "total_training_steps": 2,
                "max_concurrent_rollouts": 7,
                "logger": ["jsonl"],
            },
        }
    )
    clock.seed(seed)
    ended.clear()
    run_training(config, UserObjects([waits, blocks]))
    return list(ended)


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_sampled_runs_are_equal_bit_by_bit_whatever_tool_is_faster(loop, babbling, task_folder, tmp_path, capsys):
    orders = [sampled_run(task_folder, tmp_path / name, loop, babbling, n) for n, name in enumerate(("one", "other"))]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert unlike(tmp_path / "one", tmp_path / "other") == []
    rollouts = [each.rollout for each in stored(tmp_path / "one")]
    assert max(len(each.trajectories) for each in rollouts) > (3 if loop == "sub_agent" else 1)
    if loop == "sub_agent":
        assert any(overlaps(each) for each in rollouts)
    ledger = Auditor("train", folder=tmp_path / "one").audit((tmp_path / "one/trajectories/train").iterdir())
    assert [name for name, found in ledger.findings.items() if found.num_problems] == []


def unlike(one: Path, other: Path) -> list[str]:
    """The differences of two runs, without operations: they record what ended when."""
    names = [str(path.relative_to(one)) for path in one.glob("trajectories/*/*.parquet")]
    elsewhere = [line for line in differences(one, other) if not line.startswith(("trajectories/", "..."))]
    return elsewhere + [
        line for name in names for line in compare(name, one / name, other / name) if "operations" not in line
    ]


def overlaps(rollout: Rollout) -> bool:
    """Whether a model turn began before that of another conversation ended."""
    turns = [(at, each) for at, each in enumerate(rollout.operations) if each.kind is OperationKind.MODEL_TURN]
    return any(
        later.num_before <= at and later.trajectory != one.trajectory
        for number, (at, one) in enumerate(turns)
        for _, later in turns[number + 1 :]
    )
