"""docs/reference.md is what its script makes of the code, and names everything that a run logs or reads."""

from __future__ import annotations

import ast
import json
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
from agentrl.telemetry.metrics import METRICS, find_metric
from agentrl.types.rollout import Rollout, Stop

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference.md").read_text()


def test_the_page_is_what_the_script_makes():
    assert runpy.run_path(str(ROOT / "docs/make_reference.py"))["page"]() == PAGE, "run `make reference`"


def test_it_has_what_readers_look_for():
    for word in (
        "chat.say",
        "trajectory.messages",
        "tool_outcomes",
        "interaction_kwargs",
        "val_data",
        "engine/forwarded",
    ):
        assert word.rpartition(".")[2] in PAGE
    for name in ("say(text: str)", "await model_turn()", "await tool_turn(turn: ParsedTurn)", "rollout() -> Rollout"):
        assert f"`{name}" in PAGE


def test_every_metric_that_the_code_names_is_documented():
    named = set()
    for path in (ROOT / "agentrl").rglob("*.py"):
        texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        named |= {
            text for text in texts if isinstance(text, str) and re.fullmatch(PREFIXES + r"/[a-z0-9_/]*[a-z0-9_]", text)
        }
    assert len(named) > 60
    assert sorted(name for name in named - NO_METRICS if find_metric(name) is None) == []


NO_METRICS = {"tool_calls/ok", "val/generations", "val/generation_"}
"""A figure that the report derives, and names of samples that trackers show."""
PREFIXES = f"({'|'.join(sorted({metric.name.partition('/')[0] for metric in METRICS if '/' in metric.name}))})"


def test_the_most_exact_entry_describes_a_metric():
    assert find_metric("tool/search/p50_s").unit == "s"
    assert find_metric("tool/search/ok").unit == "calls"
    assert find_metric("val/tool/search/calls").name == "val/tool/search/calls"
    assert find_metric("val/num_tasks").unit == "tasks"
    assert find_metric("speed") is None


def test_columns_of_the_page_are_those_that_are_read():
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


@pytest.mark.slow
def test_every_metric_of_a_run_is_documented(task_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = [f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "rollout.n=2"]
    options += [f"data.val_files={task_folder}/val.jsonl", "data.val_max_samples=8", "data.train_batch_size=4"]
    options += [f"trainer.default_local_dir={tmp_path}", "trainer.total_training_steps=2", "trainer.max_staleness=1"]
    assert main(["train", "+experiment=calculator", *options, "actor.use_kl_loss=true", "trainer.logger=[jsonl]"]) == 0
    names = {name for line in (tmp_path / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)}
    assert sorted(name for name in names if find_metric(name) is None) == []
