"""The Python door, on the calculator's tiny model."""

from __future__ import annotations

import asyncio
import json

import pytest

import agentrl
from agentrl.errors import AgentRLError

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


def test_a_reward_function_of_trl_is_given_what_was_sampled(task_folder):
    def num_tokens(prompts, completions, completion_ids, **columns):
        assert prompts == [columns["prompt"][0][-1]["content"]]
        assert isinstance(completions[0], str)
        return [float(len(completion_ids[0]))]

    (group,) = agentrl.rollout(task_folder / "model", ROWS[:1], reward=num_tokens, n=2, settings=SMALL)
    lengths = [rollout.trajectories[0].num_response_tokens for rollout in group.rollouts]
    assert [rollout.reward for rollout in group.rollouts] == lengths


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
    (file,) = (run / "data").iterdir()
    assert [json.loads(line) for line in file.read_text().splitlines()] == ROWS
    assert agentrl.train(task_folder / "model", ROWS, tools=[double], reward=score, settings=settings) == run
    with pytest.raises(AgentRLError, match=r"'data.train_files' was \[.*\] and is now \[.*cannot go on with it"):
        agentrl.train(task_folder / "model", ROWS[1:], tools=[double], reward=score, settings=settings)
    assert [json.loads(line) for line in file.read_text().splitlines()] == ROWS


def test_rows_that_were_kept_are_never_written_over(tmp_path):
    settings = {"trainer.default_local_dir": str(tmp_path)}
    for rows in (ROWS, ROWS[1:], ROWS):
        with pytest.raises(AgentRLError, match="there is no folder"):
            agentrl.evaluate("/no/model", rows, reward=score, settings=settings)
    first, second = sorted((tmp_path / "data").iterdir(), key=lambda path: -path.stat().st_size)
    assert (len(first.read_text().splitlines()), len(second.read_text().splitlines())) == (8, 7)
    first.write_text("{}")
    with pytest.raises(AgentRLError, match=f"'{first}' is not as it was written"):
        agentrl.evaluate("/no/model", ROWS, reward=score, settings=settings)
    (tmp_path / "file").touch()
    with pytest.raises(AgentRLError, match=r"'trainer\.default_local_dir': cannot write to"):
        agentrl.evaluate("/no/model", ROWS, settings={"trainer.default_local_dir": str(tmp_path / "file")})


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
