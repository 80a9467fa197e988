"""docs/reference.md equals the output of its script, and names everything that a run reads."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

from agentrl.cli.main import main
from agentrl.config.data import DataConfig
from agentrl.data.columns import TASK
from agentrl.data.tasks import read_task
from agentrl.rewards.reward_view import RolloutInfo, solution_view
from agentrl.types.rollout import Rollout, Stop

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference.md").read_text()


def test_reference_page_is_up_to_date():
    assert runpy.run_path(str(ROOT / "docs/make_reference.py"))["page"]() == PAGE, "run `make reference`"


def test_reference_contains_expected_sections():
    for word in (
        "chat.say",
        "trajectory.messages",
        "tool_outcomes",
        "interaction_kwargs",
        "val_data",
    ):
        assert word.rpartition(".")[2] in PAGE
    for name in ("say(text: str)", "await model_turn()", "await tool_turn(turn: ParsedTurn)", "rollout() -> Rollout"):
        assert f"`{name}" in PAGE


def test_documented_columns_are_those_that_are_read():
    row = dict.fromkeys(TASK, None) | {"prompt": "a", "ground_truth": "1", "more": 3}
    assert read_task(DataConfig(), row, 0).extra_info == {"text_prompt": True, "more": 3}
    assert solution_view(Rollout([], Stop.FINISHED), lambda ids: "")[1].keys() == RolloutInfo.__annotations__.keys()


def test_the_experiment_file_of_the_page_can_be_used_and_needs_its_first_line(tmp_path, capsys):
    (experiment,) = re.findall(r"```yaml\n(# @package.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment/mine.yaml"
    file.write_text(experiment)
    words = ["config", "+experiment=mine", "--config-dir", str(tmp_path)]
    assert main(words) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["algorithm"]["name"], shown["rollout"]["n"], shown["trainer"]["test_freq"]) == ("gspo", 16, 10)
    file.write_text("algorithm: {name: gspo}\n")
    assert main([*words, "model.path=m"]) == 2
    assert "unknown key 'experiment" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["tools", "interaction"])
def test_yaml_of_the_page_parses(key):
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)]
    assert any(key in block for block in blocks)
