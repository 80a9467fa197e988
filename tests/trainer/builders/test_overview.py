"""The overview of a run lists the hooks of the built run; `--explain` and a started run print the same overview."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.algos.options import needs_of
from agentrl.algos.registries import ADVANTAGE_ESTIMATORS
from agentrl.cli.compose import compose_config
from agentrl.cli.main import main
from agentrl.config import RunConfig, validate_config
from agentrl.trainer.builders.overview import overview, step_hooks
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.builders.run import Run, open_run

ROOT = Path(__file__).parents[3]
ONLINE = [
    "reward.custom_reward_function.path=null",
    "reward.components={rule: {reward: gsm8k}, model: {reward: reward_model}}",
    "reward.reward_model.online={outcome: rule}",
]


def slow(overrides: list[str], hooks: str):
    return pytest.param(overrides, hooks, marks=pytest.mark.slow)


@pytest.fixture
def command(task_folder, tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(ROOT)  # the experiment's paths are relative to ROOT
    files = [f"data.{split}_files={task_folder}/{split}.jsonl" for split in ("train", "val")]
    folder, small = f"trainer.default_local_dir={tmp_path}/run", "data.train_batch_size=2"
    return ["+experiment=calculator", f"model.path={task_folder}/model", *files, folder, small, "rollout.n=2"]


def built_hooks(config: RunConfig) -> list[str]:
    async def build() -> Run:
        async with open_run(config, UserObjects()) as run:
            return run

    return asyncio.run(build()).hooks.names


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("overrides", "hooks"),
    [
        (
            [*ONLINE, "algorithm.name=gae", "algorithm.use_kl_in_reward=true", "ref.sync_steps=2"],
            "kl_controller critic learn reference_sync reward_model publish",
        ),
        slow(["actor.use_kl_loss=true", "model.lora_rank=2"], "learn publish"),
        slow(["actor.use_kl_loss=true", "ref.sync_steps=2", "trainer.max_staleness=1"], "learn reference_sync publish"),
        slow(["trainer.mode=rollout_only", "trainer.stop_when=null", "trainer.save_best=null"], ""),
        slow(["trainer.mode=val_only"], ""),
    ],
)
def test_overview_lists_hooks_of_the_built_run(command, overrides, hooks):
    config = compose_config([*command, *overrides])
    assert step_hooks(config) == hooks.split()
    assert built_hooks(config) == hooks.split()


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("sft", {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]}),
        ("reward_pairs", {"prompt": "1+1?", "chosen": "2", "rejected": "3"}),
    ],
)
def test_overview_lists_hooks_of_a_run_on_dataset_rows(task_folder, tmp_path, name, row):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    data = {"train_files": [f"{tmp_path}/rows.jsonl"], "train_batch_size": 1}
    values = {
        "model": {"path": f"{task_folder}/model"},
        "data": {**data, "max_prompt_length": 32, "max_response_length": 32},
        "algorithm": {"name": name},
        "actor": {"optim": {"lr": 1e-3}},
        "trainer": {"default_local_dir": tmp_path / "run"},
    }
    config = validate_config(values)
    assert step_hooks(config) == (["learn", "publish"] if name == "sft" else ["learn"])
    assert built_hooks(config) == step_hooks(config)


def test_hooks_of_a_shared_gpu_are_around_the_update_and_before_publishing(command):
    asked = ["rollout.engine=sglang", "rollout.sglang.colocate=true", "algorithm.name=gae"]
    config = compose_config([*command, *asked])
    assert step_hooks(config) == ["gpu_handover", "critic", "learn", "gpu_return", "publish"]


def test_gae_is_the_only_built_in_estimator_with_a_critic():
    names = ADVANTAGE_ESTIMATORS.names()
    assert [name for name in names if "values" in needs_of(ADVANTAGE_ESTIMATORS.get(name))] == ["gae"]


def test_a_users_estimator_may_need_a_critic(command, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from agentrl.algos.options import with_needs\n\n\n@with_needs('values')\ndef mine(batch): ...\n"
    )
    config = compose_config([*command, f"algorithm.adv_estimator={tmp_path}/mine.py:mine"])
    assert step_hooks(config) == ["critic", "learn", "publish"]


def components(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    return {line[2:14].strip(): line[15:] for line in lines}


def test_each_component_has_a_line(command):
    shown = components(overview(compose_config([*command, "algorithm.name=gae", "actor.use_kl_loss=true"])))
    assert {"mode", "model", "source", "agent loop", "tools", "reward", "engine", "backend"} <= shown.keys()
    assert shown["algorithm"] == "gae: estimator gae, loss vanilla, token-mean"
    assert shown["hooks"] == "critic -> learn -> publish"


def test_a_harness_has_a_line(command):
    shown = components(overview(compose_config(["+experiment=calculator_harness", *command[1:]])))
    assert (shown["agent loop"], Path(shown["harness"]).name) == ("harness", "calculator_agent.yaml")


@pytest.mark.slow
def test_explain_prints_what_a_started_run_prints_and_writes_nothing(command, tmp_path, capsys):
    short = [*command, "trainer.total_training_steps=1", "data.val_files=[]", "trainer.stop_when=null"]
    short += ["trainer.save_best=null", "trainer.logger=[jsonl]", "data.max_response_length=32"]
    assert main(["train", *short, "--explain"]) == 0
    explained = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert main(["train", *short]) == 0
    started = capsys.readouterr().out
    table = explained[: explained.index("nothing was written")]
    assert len(components(table)) > 5
    assert table in started


@pytest.mark.slow
def test_explain_loads_no_torch(command):
    """With the format `auto` it loads the tokenizer, and transformers imports torch for that."""
    words = ["train", *command, "algorithm.name=gae", "rollout.multi_turn.format=hermes", "--explain"]
    code = f"import sys; from agentrl.cli.main import main; sys.exit(main({words!r}) or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_environment_is_listed_with_the_tools():
    config = compose_config(["+experiment=calculator", "rollout.multi_turn.environment=world.py:World"])
    (line,) = [each for each in overview(config).splitlines() if each.split()[0] == "tools"]
    assert line.endswith("examples/calculator/tool.py, world.py:World")


@pytest.mark.parametrize(
    ("family", "layout", "line"),
    [
        ("qwen3", {}, None),
        ("qwen3_moe", {}, "4 per layer, not balanced: all balancing losses are off"),
        ("deepseek_v3", {}, "4 per layer, not balanced: all balancing losses are off, expert bias frozen"),
        (
            "deepseek_v3",
            {"moe_aux_loss_coeff": 0.01, "moe_router_bias_update_rate": 0.001},
            "4 per layer, balanced by moe_aux_loss_coeff=0.01, moe_router_bias_update_rate=0.001",
        ),
    ],
)
@pytest.mark.usefixtures("megatron")
def test_a_mixture_of_experts_has_a_line_about_their_balance(tmp_path, family, layout, line):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    experts = {} if family == "qwen3" else {"num_experts": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **sizes, **experts}))
    config = compose_config(["+experiment=calculator", f"model.path={tmp_path}", "actor.backend=megatron"])
    layouts = config.actor.megatron.model_copy(update=layout)
    config = config.model_copy(update={"actor": config.actor.model_copy(update={"megatron": layouts})})
    assert components(overview(config)).get("experts") == line
