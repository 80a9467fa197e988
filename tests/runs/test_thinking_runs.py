"""A run whose template drops thoughts (`thinking=strip`): trained, resumed, audited and replayed."""

from __future__ import annotations

import json
import shutil

import pytest
from chat_families import THINKING
from replayed_runs import CALCULATOR, replayed, stored
from safetensors.torch import load_file

from agentrl.cli.main import main
from agentrl.types.trajectory import Author

pytestmark = pytest.mark.slow

SCRIPT = """
from zlib import crc32

CALL = '<tool_call>\\n{"name": "calculator", "arguments": {"expression": "%d+1"}}\\n</tool_call>'

def reply(context):
    number = crc32(context.encode())
    answers = ["Let me see.\\n" + CALL % (number % 9), f"The answer is {number % 4}", "<|im_end|> " + CALL % 3]
    return f"<think>\\nHm, {number % 7}\\n</think>\\n\\n" + answers[number // 7 % 3]
"""
USERS = "interaction: [{name: gsm8k, class_name: gsm8k, config: {}}]"


def keys(task_folder, folder) -> list[str]:
    return [
        f"model.path={folder}/model",
        f"data.train_files=[{task_folder}/train.jsonl]",
        *("data.train_max_samples=6", "data.train_batch_size=3", "rollout.n=4"),
        *("data.max_prompt_length=200", "data.max_response_length=400"),
        *("rollout.engine=scripted", f"rollout.script_path={folder}/script.py:reply"),
        f"rollout.multi_turn.function_tool_path={CALCULATOR}/tool.py",
        f"rollout.multi_turn.interaction_config_path={folder}/users.yaml",
        *("rollout.multi_turn.max_assistant_turns=5", "rollout.multi_turn.thinking=strip"),
        "reward.name=exact_match",
    ]


@pytest.fixture(scope="module")
def runs(task_folder, tmp_path_factory):
    """(folder, keys): the run `whole`, and the run `halves` that was resumed after its first step."""
    folder = tmp_path_factory.mktemp("thinking")
    shutil.copytree(task_folder / "model", folder / "model")
    (folder / "model/chat_template.jinja").write_text(THINKING)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "users.yaml").write_text(USERS)
    rows = [json.loads(line) for line in (task_folder / "train.jsonl").read_text().splitlines()[:6]]
    lines = [json.dumps({**row, "interaction_kwargs": {"ground_truth": row["ground_truth"]}}) for row in rows]
    (folder / "train.jsonl").write_text("\n".join(lines))
    given = keys(folder, folder)
    for name, num_steps in (("whole", 2), ("halves", 1), ("halves", 2)):
        length = [f"trainer.total_training_steps={num_steps}"]
        out = [f"trainer.default_local_dir={folder}/{name}", "trainer.resume_mode=auto", "trainer.logger=[jsonl]"]
        assert main(["train", *given, *length, *out]) == 0
    return folder, given


def test_a_resumed_run_has_the_tokens_advantages_and_weights_of_an_uninterrupted_one(runs):
    folder, _ = runs
    one, other = (
        [(each.task.uid, each.advantages, [one.token_ids for one in each.rollout.trajectories]) for each in stored(run)]
        for run in (folder / "whole", folder / "halves")
    )
    assert one == other
    one, other = (load_file(folder / name / "checkpoints/latest/model.safetensors") for name in ("whole", "halves"))
    assert all(one[name].equal(other[name]) for name in one)
    before = load_file(folder / "model/model.safetensors")
    assert not all(one[name].equal(before[name]) for name in one)


def test_the_audit_passes(runs, capsys):
    folder, _ = runs
    (audited,) = replayed(capsys, f"{folder}/whole", "audit")["results"]
    assert not audited["failed"]
    assert audited["values"]["further prompts"]["looked_at"] > 24


def test_each_rollout_has_one_advantage_on_all_its_sampled_tokens(runs):
    folder, _ = runs
    rollouts = list(stored(folder / "whole"))
    assert {len(each.rollout.trajectories) for each in rollouts} >= {2, 3, 4}
    for each in rollouts:
        trained = zip(each.rollout.trajectories, each.advantages, strict=True)
        values = [
            {value for value, trains in zip(advantages, one.loss_mask, strict=True) if trains}
            for one, advantages in trained
            if advantages is not None
        ]
        assert len(set.union(*values)) == 1
        sampled = [
            segment for one in each.rollout.trajectories for segment in one.segments if segment.author is Author.MODEL
        ]
        assert sum(map(len, sampled)) == sum(sum(one.loss_mask) for one in each.rollout.trajectories)


def test_replayed_rollouts_have_the_saved_tokens(runs, capsys, tmp_path):
    folder, given = runs
    words = [f"{folder}/whole", "tools", "--unrecorded", "error", *given, "--reward", "exact_match"]
    (result,) = replayed(capsys, *words, "--out", tmp_path)["results"]
    assert (result["values"]["num_same"], result["failed"]) == (24, False)


def test_rollouts_continue_from_a_turn_of_their_first_trajectory(runs, capsys, tmp_path):
    folder, given = runs
    words = [f"{folder}/whole", "from-turn", "1", *given, "--reward", "exact_match", "--out", tmp_path]
    (result,) = replayed(capsys, *words)["results"]
    assert result["values"]["left_out"] == {"reach that turn after thoughts were dropped": 12}
    (audited,) = replayed(capsys, f"{tmp_path}/from-turn-1", "audit")["results"]
    assert not audited["failed"]
