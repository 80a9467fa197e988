"""The Python door, on the calculator's tiny model."""

from __future__ import annotations

import asyncio
import json

import pytest

import agentrl
from agentrl.errors import AgentRLError
from agentrl.rewards.reward_funcs import RewardFuncs

ROWS = [{"prompt": f"What is {a}+{a}?", "ground_truth": str(2 * a), "data_source": "doubles"} for a in range(10, 18)]
SMALL = {
    "data": {"max_prompt_length": 256, "max_response_length": 64},
    "rollout": {"multi_turn.max_turn_tokens": 16, "multi_turn": {"max_assistant_turns": 2}},
    "trainer.logger": ["jsonl"],
}


def double(number: int) -> int:
    """Twice a number.

    Args:
        number: which one
    """
    return 2 * number


def score(data_source, solution_str, ground_truth, extra_info):
    return len(solution_str) % 7 / 7


def test_rollouts_come_back_in_the_order_of_the_rows(task_folder):
    groups = agentrl.rollout(task_folder / "model", ROWS[:3], tools=[double], reward=score, n=2, settings=SMALL)
    assert [group.task.ground_truth for group in groups] == ["20", "22", "24"]
    assert [len(group.rollouts) for group in groups] == [2, 2, 2]
    assert all(0 < r.trajectories[0].num_trained_tokens <= 32 for group in groups for r in group.rollouts)


def test_training_leaves_a_run_and_the_rows_it_was_given(task_folder, tmp_path):
    settings = {
        **SMALL,
        "trainer.default_local_dir": str(tmp_path / "run"),
        "trainer.total_training_steps": 1,
        "data.train_batch_size": 2,
        "rollout.n": 2,
    }
    run = agentrl.train(task_folder / "model", ROWS, tools=[double], reward=score, settings=settings)
    assert (run / "checkpoints/latest/model.safetensors").is_file()
    assert [json.loads(line) for line in (run / "data/train.jsonl").read_text().splitlines()] == ROWS


def test_evaluation_works_where_an_event_loop_runs_already(task_folder, tmp_path):
    async def cell_of_a_notebook() -> dict[str, float]:
        settings = {**SMALL, "trainer.default_local_dir": str(tmp_path)}
        return agentrl.evaluate(task_folder / "model", ROWS[:2], reward=score, settings=settings)

    assert asyncio.run(cell_of_a_notebook())["val/num_tasks"] == 2


def test_mistakes_are_told_as_on_the_command_line(tmp_path):
    with pytest.raises(AgentRLError, match=r"unknown key 'rollout.nn': did you mean 'rollout.n'\?"):
        agentrl.train("m", ROWS, settings={"rollout.nn": 1})
    settings = {"rollout.n": 2, "trainer.default_local_dir": str(tmp_path)}
    with pytest.raises(AgentRLError, match="files or rows, not both"):
        agentrl.train("m", [*ROWS, "file.jsonl"], settings=settings)
    with pytest.raises(AgentRLError, match="several rewards"):
        agentrl.train("m", ROWS, reward=[score, score], settings=settings)


def judge(functions, **row) -> dict[str, float]:
    extra = {"turn_texts": ["let me see", "it is 20"], "prompt": [{"role": "user", "content": "?"}], **row}
    return asyncio.run(RewardFuncs(functions, 5.0)("doubles", "it is 20", "20", extra))


def test_reward_functions_of_trl_are_called_with_lists_of_one_and_added_up():
    def right(completions, ground_truth, **columns):
        assert columns["prompts"] == [[{"role": "user", "content": "?"}]]
        assert columns["level"] == [3]
        return [
            float(truth in completion[-1]["content"])
            for completion, truth in zip(completions, ground_truth, strict=True)
        ]

    async def short(completions):
        return [0.5 if len(completion) == 2 else 0.0 for completion in completions]

    def does_not_apply(prompts, completions):
        return [None]

    assert judge([right, short, does_not_apply], level=3) == {
        "score": 1.5,
        "right": 1.0,
        "short": 0.5,
        "does_not_apply": 0.0,
    }


def test_a_reward_function_that_gives_no_list_of_one_is_named():
    def wrong(completions):
        return [1.0, 2.0]

    with pytest.raises(AgentRLError, match=r"reward 'wrong'.*row 7.*list of one number"):
        judge([wrong], index=7)
