"""A real tiny model: log-probabilities of its own tokens, under itself, under another model, and by transformers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.cli.main import main
from agentrl.errors import ConfigError, DataError
from agentrl.replay.base import Options, Replay, Result
from agentrl.replay.logprobs.checkpoint_scores import score_rollouts
from agentrl.replay.logprobs.mode import logprobs
from agentrl.replay.saved_run import SavedRun, open_saved
from agentrl.replay.settings import replay_config
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Rollout, Stop, TurnReward
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

CALCULATOR = Path(__file__).parents[2] / "examples/calculator"
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def sampled_run(task_folder, tmp_path_factory) -> Path:
    """Two steps sampled by the embedded engine, with temperature other than 1; `model` sampled the first step."""
    folder = tmp_path_factory.mktemp("sampled")
    shutil.copytree(task_folder / "model", folder / "model")
    (folder / "reward.py").write_text("def compute_score(solution_str):\n    return len(solution_str) % 5 / 4\n")
    keys = {
        "model.path": f"{folder}/model",
        "data.train_files": f"[{task_folder}/train.jsonl]",
        "data.val_files": f"[{task_folder}/val.jsonl]",
        "data.val_max_samples": 2,
        "data.train_batch_size": 4,
        "data.max_prompt_length": 64,
        "data.max_response_length": 32,
        "rollout.n": 4,
        "rollout.temperature": TEMPERATURE,
        "rollout.agent.default_agent_loop": "tool_agent",
        "rollout.multi_turn.function_tool_path": CALCULATOR / "tool.py",
        "actor.optim.lr": 0.001,
        "reward.custom_reward_function.path": f"{folder}/reward.py",
        "trainer.default_local_dir": f"{folder}/run",
        "trainer.total_training_steps": 2,
        "trainer.test_freq": 2,
        "trainer.logger": "[jsonl]",
    }
    assert main(["train", *(f"{key}={value}" for key, value in keys.items())]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def moved_model(sampled_run, tmp_path_factory) -> Path:
    """A model near the sampling model, but not equal."""
    folder = tmp_path_factory.mktemp("moved") / "model"
    shutil.copytree(sampled_run.parent / "model", folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    moved = {name: value + 0.02 * torch.randn(value.shape, generator=generator) for name, value in weights.items()}
    save_file(moved, folder / "model.safetensors", {"format": "pt"})
    return folder


def under(run: SavedRun, model: Path | str, **more: object) -> Result:
    return logprobs(Replay(run, Options(overrides={"model": {"path": str(model)}, **more})))


def first_step(run: Path) -> SavedRun:
    return open_saved(f"{run}@1", "train")


def test_the_checkpoint_that_sampled_has_ratios_of_one(sampled_run):
    result = under(first_step(sampled_run), sampled_run.parent / "model")
    figures, rewards = result.values["figures"]["1"], result.values["rewards"]["1"]
    assert figures["tokens"]["log_quantiles"] == pytest.approx([0.0] * 4, abs=1e-5)
    assert figures["rollouts"]["log_quantiles"] == pytest.approx([0.0] * 4, abs=1e-4)
    assert (figures["tokens"]["clipped"], figures["versions"]) == (0.0, [0])
    assert figures["perplexity"] == pytest.approx(figures["sampled_perplexity"], rel=1e-5)
    assert figures["k1"]["value"] == pytest.approx(0.0, abs=1e-5)
    assert rewards["num_effective"] == pytest.approx(rewards["num"])
    for name in ("ordinary", "weighted", "per_decision"):
        assert rewards[name]["value"] == pytest.approx(rewards["sampled"]["value"], rel=1e-4)


@pytest.mark.slow
def test_adapter_given_on_the_command_line_is_used_for_scoring(sampled_run, tmp_path):
    model = sampled_run.parent / "model"
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype="auto"), config)
    adapted.save_pretrained(tmp_path / "adapter")
    run = first_step(sampled_run)
    given = Options(overrides={"model": {"path": str(model), "lora_adapter_path": str(tmp_path / "adapter")}})
    figures = logprobs(Replay(run, given)).values["figures"]["1"]
    (trajectories,) = zip(*(stored.rollout.trajectories for stored in run.rollouts()), strict=True)
    expected = np.concatenate([transformers_logprobs(adapted.eval(), each) for each in trajectories])
    assert figures["perplexity"] == pytest.approx(np.exp(-expected.mean()), rel=1e-5)
    assert abs(figures["k1"]["value"]) > 0.001  # or the adapter has no effect


@pytest.mark.slow
def test_log_probabilities_equal_transformers(sampled_run, moved_model):
    run = first_step(sampled_run)
    replay = Replay(run, Options(overrides={"model": {"path": str(moved_model)}}))
    scored, left_out = score_rollouts(replay, replay_config(replay))
    stored = list(run.rollouts())
    assert len(scored) == len(stored) == 16
    assert not left_out
    model = AutoModelForCausalLM.from_pretrained(moved_model, dtype="auto")
    for mine, rollout in zip(scored, stored, strict=True):
        (trajectory,) = rollout.rollout.trajectories
        expected = transformers_logprobs(model, trajectory)
        assert mine.checkpoint == pytest.approx(expected, abs=1e-5)
        assert mine.sampled.tolist() == [
            p for p, on in zip(trajectory.logprobs, trajectory.loss_mask, strict=True) if on
        ]


def transformers_logprobs(model: torch.nn.Module, trajectory: Trajectory) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([list(trajectory.token_ids)])).logits[0].double()
    logprobs = torch.log_softmax(logits / TEMPERATURE, -1)
    trained = [index for index, on in enumerate(trajectory.loss_mask) if on]
    return [float(logprobs[index - 1, trajectory.token_ids[index]]) for index in trained]


@pytest.mark.slow
def test_figures_of_another_checkpoint_are_their_formulas(sampled_run, moved_model):
    replay = Replay(first_step(sampled_run), Options(overrides={"model": {"path": str(moved_model)}}))
    scored, _ = score_rollouts(replay, replay_config(replay))
    sampled, now = (np.concatenate([getattr(each, name) for each in scored]) for name in ("sampled", "checkpoint"))
    ratios = np.exp(now - sampled)
    assert ratios.std() > 0.01  # or nothing would be compared
    figures = logprobs(replay).values["figures"]["1"]
    assert figures["perplexity"] == pytest.approx(np.exp(-now.mean()))
    assert figures["k1"]["value"] == pytest.approx((sampled - now).mean())
    assert figures["k3"]["value"] == pytest.approx((ratios - 1 - np.log(ratios)).mean(), rel=1e-4)
    assert figures["tokens"]["effective_share"] == pytest.approx(ratios.mean() ** 2 / (ratios**2).mean())
    assert figures["tokens"]["clipped"] == ((ratios < 0.8) | (ratios > 1.2)).mean()
    assert figures["tokens"]["log_quantiles"] == pytest.approx(np.quantile(np.log(ratios), (0.01, 0.5, 0.99, 1.0)))
    weights = np.exp([each.log_ratios.sum() for each in scored])
    scores = np.array([each.score for each in scored])
    rewards = logprobs(replay).values["rewards"]["1"]
    assert rewards["weighted"]["value"] == pytest.approx((weights * scores).sum() / weights.sum())


@pytest.mark.slow
def test_several_steps_have_a_line_each_and_one_of_all(sampled_run, moved_model):
    values = under(open_saved(str(sampled_run), "train"), moved_model).values
    assert list(values["figures"]) == ["1", "2", "all"]
    assert [values["figures"][name]["versions"] for name in ("1", "2", "all")] == [[0], [1], [0, 1]]
    assert sum(values["figures"][name]["tokens"]["num"] for name in "12") == values["figures"]["all"]["tokens"]["num"]


def test_greedy_rollouts_have_no_ratios(sampled_run):
    result = under(open_saved(f"{sampled_run}@0", "val"), sampled_run.parent / "model")
    assert "greedy" in result.values["no_ratios"]
    assert "greedy" in result.tables[0].note
    assert (len(result.tables), result.values["rewards"]) == (1, {})


def test_truncated_distribution_has_no_ratios(sampled_run):
    cut = {"val_kwargs": {"do_sample": True, "top_k": 5}}
    result = under(open_saved(f"{sampled_run}@0", "val"), sampled_run.parent / "model", rollout=cut)
    assert "top-k" in result.values["no_ratios"]


def test_another_vocabulary_is_refused(sampled_run, tmp_path):
    shutil.copytree(sampled_run.parent / "model", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.add_tokens(["<another>"])
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match="its vocabulary differs from the one that made the rollouts of"):
        under(first_step(sampled_run), tmp_path / "model")


def test_missing_checkpoint_option_is_an_error(sampled_run):
    with pytest.raises(ConfigError, match="give the checkpoint to compute them with"):
        logprobs(Replay(first_step(sampled_run), Options()))


def said(*token_ids: int) -> Segment:
    return Segment(Author.MODEL, token_ids, [-0.5] * len(token_ids), [VersionSpan(0, len(token_ids))])


PROMPT, ANSWER = Segment(Author.PROMPT, [1, 2]), Segment(Author.TOOL, [5])


def keep(folder: Path, *rollouts: Rollout) -> SavedRun:
    TrajectoryStore(folder).write(1, [Group(Task([{"role": "user", "content": "?"}], uid="u"), list(rollouts))])
    return open_saved(str(folder))


def test_rollouts_without_sampled_tokens_are_refused_or_counted(sampled_run, tmp_path):
    model = sampled_run.parent / "model"
    demonstrated = Trajectory([PROMPT, Segment(Author.DEMONSTRATION, [3])])
    useless = [
        Rollout([Trajectory([], [{"role": "user", "content": "?"}])], Stop.FINISHED),
        Rollout([demonstrated], Stop.FINISHED),
        Rollout([Trajectory([PROMPT, said(3)])], Stop.ERROR),
        Rollout([Trajectory([PROMPT])], Stop.FINISHED),
    ]
    reasons = "1 without tokens, 1 with demonstrations, 1 failed, 1 without sampled tokens"
    with pytest.raises(DataError, match=f"no rollout can be scored \\({reasons}\\)"):
        under(keep(tmp_path / "a", *useless), model)
    result = under(keep(tmp_path / "b", *useless, Rollout([Trajectory([PROMPT, said(3)])], Stop.FINISHED)), model)
    assert sum(result.values["left_out"].values()) == 4
    assert "Skipped: 1 rollouts failed." in result.tables[0].note
    assert "did not save" in result.values["no_ratios"]


def test_tokens_beyond_the_model_are_refused(sampled_run, tmp_path):
    run = keep(tmp_path, Rollout([Trajectory([PROMPT, said(10**6)])], Stop.FINISHED))
    with pytest.raises(ConfigError, match="contains token id 1000000, but the model has only"):
        under(run, sampled_run.parent / "model")


def test_a_reward_with_an_address_counts_the_tokens_up_to_its_turn(sampled_run, tmp_path):
    trajectories = [Trajectory([PROMPT, said(3, 4), ANSWER, said(6)]), Trajectory([said(3, 4), ANSWER, said(7, 8, 9)])]
    turn_rewards = [TurnReward(0, 1, "a", 0.1), TurnReward(0, 2, "b", 0.2), TurnReward(1, 0, "c", 0.3)]
    turn_rewards.append(TurnReward(1, 2, "d", 0.4))
    run = keep(tmp_path, Rollout(trajectories, Stop.FINISHED, {"score": 1.0}, turn_rewards=turn_rewards))
    replay = Replay(run, Options(overrides={"model": {"path": str(sampled_run.parent / "model")}}))
    ((scored,), _) = score_rollouts(replay, replay_config(replay))
    assert len(scored.sampled) == 3 + 4  # the second trajectory's first token has no prediction
    assert scored.turn_rewards == [(2, 0.1), (2, 0.2), (4, 0.3), (7, 0.4)]
