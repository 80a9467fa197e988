"""The Python API, on the calculator's tiny model."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import ClassVar

import pytest

import agentrl
from agentrl.agent_loops import AgentLoop
from agentrl.api import _Inputs
from agentrl.chat.parsers.hermes import HermesParser
from agentrl.config import validate_config
from agentrl.errors import AgentRLError
from agentrl.interactions.base import BaseInteraction
from agentrl.trainer.builders.rollouts import UserObjects, check_python_objects

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


def test_trl_reward_function_gets_sampled_completions(task_folder):
    def num_tokens(prompts, completions, completion_ids, **columns):
        assert prompts == [columns["prompt"][0][-1]["content"]]
        assert isinstance(completions[0], str)
        return [float(len(completion_ids[0]))]

    (group,) = agentrl.rollout(task_folder / "model", ROWS[:1], reward=num_tokens, n=2, settings=SMALL)
    lengths = [rollout.trajectories[0].num_response_tokens for rollout in group.rollouts]
    assert [rollout.reward for rollout in group.rollouts] == lengths


def test_training_from_python_creates_a_run_with_the_given_rows(task_folder, tmp_path):
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
    with pytest.raises(AgentRLError, match="holds a run already"):
        agentrl.train(task_folder / "model", ROWS, tools=[double], reward=score, settings=settings)
    settings["trainer.resume_mode"] = "auto"
    assert agentrl.train(task_folder / "model", ROWS, tools=[double], reward=score, settings=settings) == run
    with pytest.raises(AgentRLError, match=r"'data.train_files' was \[.*\] and is now \[.*cannot be resumed"):
        agentrl.train(task_folder / "model", ROWS[1:], tools=[double], reward=score, settings=settings)
    assert [json.loads(line) for line in file.read_text().splitlines()] == ROWS
    assert list((run / "data").iterdir()) == [file]


@pytest.mark.parametrize("door", [agentrl.train, agentrl.evaluate])
def test_failed_start_leaves_no_files(door, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for settings in ({}, {"trainer.default_local_dir": "deep/run"}):
        with pytest.raises(AgentRLError, match="there is no folder"):
            door("/no/model", ROWS, reward=score, settings={"rollout.n": 2, **settings})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").touch()
    with pytest.raises(AgentRLError, match="there is no folder"):
        door("/no/model", ROWS, settings={"rollout.n": 2, "trainer.default_local_dir": "mine"})
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


def test_kept_rows_are_never_overwritten(tmp_path):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    file = tmp_path / f"data/val-{sha256(lines.encode()).hexdigest()[:12]}.jsonl"
    file.parent.mkdir()
    file.write_text("{}")
    settings = {"trainer.default_local_dir": str(tmp_path)}
    with pytest.raises(AgentRLError, match=f"'{file}' was changed after the run wrote it"):
        agentrl.evaluate("/no/model", ROWS, reward=score, settings=settings)
    assert file.read_text() == "{}"
    (tmp_path / "file").touch()
    with pytest.raises(AgentRLError, match=r"'trainer\.default_local_dir': cannot write to"):
        agentrl.evaluate("/no/model", ROWS, settings={"trainer.default_local_dir": str(tmp_path / "file")})


def test_evaluation_works_inside_a_running_event_loop(task_folder, tmp_path):
    async def cell_of_a_notebook() -> dict[str, float]:
        settings = {**SMALL, "trainer.default_local_dir": str(tmp_path)}
        return agentrl.evaluate(task_folder / "model", ROWS[:2], reward=score, settings=settings)

    assert asyncio.run(cell_of_a_notebook())["val/num_tasks"] == 2


def test_errors_are_the_same_as_on_the_command_line(tmp_path):
    with pytest.raises(AgentRLError, match=r"unknown key 'rollout.nn': did you mean 'rollout.n'\?"):
        agentrl.train("m", ROWS, settings={"rollout.nn": 1})
    settings = {"rollout.n": 2, "trainer.default_local_dir": str(tmp_path)}
    with pytest.raises(AgentRLError, match="files or rows, not both"):
        agentrl.train("m", [*ROWS, "file.jsonl"], settings=settings)
    with pytest.raises(AgentRLError, match="several rewards"):
        agentrl.train("m", ROWS, reward=[score, score], settings=settings)


def test_an_evaluation_has_metrics_and_rollouts_and_prints_a_line(task_folder, tmp_path, capsys):
    settings = {**SMALL, "trainer.default_local_dir": str(tmp_path)}
    result = agentrl.evaluate(task_folder / "model", ROWS[:2], reward=score, settings=settings)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("2 tasks, 2 rollouts, mean reward")
    assert dict(result) == result.metrics
    assert [rollout.reward for rollout in result.rollouts] == [group.rollouts[0].reward for group in result.groups]
    assert len(repr(result)) < 120
    agentrl.evaluate(task_folder / "model", ROWS[:2], reward=score, settings=settings, quiet=True)
    assert capsys.readouterr().out == ""


class Once(AgentLoop):
    """A loop with one turn."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        return chat.rollout()


def halves(batch):
    advantages = batch.token_rewards.sum(-1, keepdim=True) * batch.loss_mask / 2
    return advantages, advantages


def plain_loss(batch):
    return -batch.advantages * batch.logprobs, {}


@pytest.mark.slow
def test_objects_are_accepted_in_place_of_names(task_folder, tmp_path):
    settings = {
        **SMALL,
        "trainer.default_local_dir": str(tmp_path / "run"),
        "trainer.total_training_steps": 1,
        "data.train_batch_size": 2,
        "rollout.n": 2,
        "algorithm.adv_estimator": halves,
        "actor.policy_loss.loss_mode": plain_loss,
    }
    run = agentrl.train(task_folder / "model", ROWS, reward="exact_match", agent_loop=Once, settings=settings)
    config = agentrl.load(run).config
    assert config["algorithm"]["adv_estimator"] == "test_api:halves"
    assert config["actor"]["policy_loss"]["loss_mode"] == "test_api:plain_loss"
    assert config["rollout"]["agent"]["default_agent_loop"] == "test_api:Once"
    assert config["reward"]["name"] == "exact_match"
    assert config["trainer"]["python_objects"] == []
    assert all(len(one.rollout.trajectories[0].segments) == 2 for one in agentrl.load(run).rollouts("train"))


def test_a_run_with_objects_of_python_is_not_resumed_by_a_command():
    config = validate_config({"model": {"path": "m"}, "trainer": {"python_objects": ["reward score"]}})
    with pytest.raises(
        AgentRLError, match=r"started with Python objects \(reward score\): resume it with agentrl.train"
    ):
        check_python_objects(config, UserObjects())
    check_python_objects(config, UserObjects(in_python=True))


def test_user_code_that_fails_in_training_is_a_one_line_error(task_folder, tmp_path):
    def broken(batch):
        return batch.token_rewards.mean()

    settings = {**SMALL, "trainer.default_local_dir": str(tmp_path / "run"), "algorithm.adv_estimator": broken}
    settings |= {"data.train_batch_size": 2, "rollout.n": 2}
    with pytest.raises(AgentRLError, match=r"^advantage estimator '.*broken' must return .*test_api.py:\d+\)$"):
        agentrl.train(task_folder / "model", ROWS, reward=score, settings=settings)


def test_errors_name_the_rows_that_were_given(task_folder):
    rows = [*ROWS[:3], {"ground_truth": "4"}]
    with pytest.raises(AgentRLError, match=r"^data\[3\]: ") as raised:
        agentrl.rollout(task_folder / "model", rows, reward=score, settings=SMALL)
    assert "jsonl" not in str(raised.value)
    with pytest.raises(AgentRLError, match=r"^val_data\[3\]: "):
        agentrl.train(task_folder / "model", ROWS, reward=score, val_data=rows, settings={**SMALL, "rollout.n": 2})


def test_unusable_objects_are_reported(task_folder):
    with pytest.raises(AgentRLError, match=r"interactions\[0\] must be a BaseInteraction instance"):
        agentrl.train("m", ROWS, interactions=[Once])
    settings = {"a": lambda batch: 1, "b": lambda batch: 2}
    with pytest.raises(AgentRLError, match="two different objects have the name"):
        agentrl.train("m", ROWS, settings=settings)
    with pytest.raises(AgentRLError, match="unknown reward 'exact_mach': did you mean 'exact_match'"):
        agentrl.rollout(task_folder / "model", ROWS, reward="exact_mach")


class Nods(BaseInteraction):
    """A simulated user that is satisfied after one answer."""

    async def generate_response(self, instance_id, messages, **kwargs):
        return True, "thanks", 0.5, {}


class Watched(HermesParser):
    """Records the texts that it reads."""

    read: ClassVar[list[str]] = []

    def parse(self, text):
        self.read.append(text)
        return super().parse(text)


def test_simulated_users_and_parsers_may_be_objects(task_folder):
    rows = [{**ROWS[0], "interaction_kwargs": {"name": "nods"}}]
    settings = {**SMALL, "rollout": {**SMALL["rollout"], "multi_turn.format": Watched}}
    (group,) = agentrl.rollout(
        task_folder / "model",
        rows,
        tools=[double],
        reward=score,
        interactions=[Nods({"name": "nods"})],
        settings=settings,
    )
    assert Watched.read
    earned = [reward.value for reward in group.rollouts[0].turn_rewards]
    assert earned == ([0.5] if group.rollouts[0].stop == "interaction_ended" else [])


class Lamp:
    def reset(self):
        self.lit = False

    def switch(self) -> str:
        """Switch the lamp."""
        self.lit = not self.lit
        return "lit" if self.lit else "dark"

    def get_reward(self) -> float:
        return float(self.lit)


@pytest.mark.parametrize(
    ("reward", "settings", "name"),
    [
        (None, None, "tool_rewards"),
        (score, None, "auto"),
        ("exact_match", None, "exact_match"),
        (None, {"reward": {"name": "exact_match"}}, "exact_match"),
    ],
)
def test_the_reward_of_an_environment_is_the_score_unless_another_is_given(reward, settings, name):
    inputs = _Inputs("model", {"train_files": ROWS}, (), reward, None, (), Lamp, settings)
    config = inputs.config
    assert config.rollout.multi_turn.environment == f"{__name__}:Lamp"
    assert (config.reward.name, config.rollout.agent_loop) == (name, "tool_agent")


@pytest.mark.slow
def test_an_environment_may_be_a_class(task_folder):
    (group,) = agentrl.rollout(task_folder / "model", ROWS[:1], environment=Lamp, n=2, settings=SMALL)
    assert all(rollout.tool_rewards == {"Lamp": rollout.reward} for rollout in group.rollouts)
    with pytest.raises(AgentRLError, match="environment 'int': it has no public method besides"):
        agentrl.rollout(task_folder / "model", ROWS[:1], environment=type("int", (), {}), settings=SMALL)
