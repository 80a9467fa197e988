"""`PATH[@STEP]`: how it is resolved, what is known about its rollouts, and their tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from replayed_runs import rewritten, with_config

from agentrl.errors import ConfigError, DataError
from agentrl.models import loading
from agentrl.replay.saved_run import open_saved
from agentrl.store import TrajectoryStore


def test_run_path_means_training_rollouts_by_default(saved_run):
    train, val = open_saved(str(saved_run)), open_saved(str(saved_run), "val")
    assert (train.split, list(train.steps), len(list(train.rollouts()))) == ("train", [1, 2], 32)
    assert (val.split, list(val.steps), len(list(val.rollouts()))) == ("val", [0, 2], 8)
    assert [len(group) for group in train.groups()] == [4] * 8
    assert train.config["trainer"]["total_training_steps"] == 2
    assert train.description.startswith("train, 2 steps, 1 to 2; made by agentrl ")


@pytest.mark.parametrize(("step", "kept"), [("2", [2]), ("first", [1]), ("last", [2])])
def test_a_step_is_a_number_or_a_word(saved_run, step, kept):
    assert list(open_saved(f"{saved_run}@{step}").steps) == kept


@pytest.mark.parametrize("inside", ["trajectories", "trajectories/train", "trajectories/train/step-000002.parquet"])
def test_folder_of_files_and_single_file_are_read(saved_run, inside):
    run = open_saved(f"{saved_run}/{inside}")
    assert (run.split, run.folder) == ("train", saved_run)
    assert {row.step for row in run.rollouts()} == set(run.steps)
    assert len(run.tokenizer()) > 10


def test_split_of_a_file_is_read_from_its_metadata(saved_run, tmp_path):
    shutil.copy(saved_run / "trajectories/val/step-000002.parquet", tmp_path / "any name.parquet")
    shutil.copy(saved_run / "trajectories/val/step-000002.parquet", tmp_path)
    for path in (tmp_path / "any name.parquet", tmp_path):
        run = open_saved(str(path))
        assert (run.split, list(run.steps), run.folder) == ("val", [2], None)
        with pytest.raises(DataError, match="has no rollouts of split 'train': use --split val"):
            open_saved(str(path), "train")


@pytest.mark.parametrize("name", ["step-2", "latest"])
def test_checkpoint_path_selects_its_validation(saved_run, name):
    run = open_saved(f"{saved_run}/checkpoints/{name}")
    assert (run.split, list(run.steps), run.folder) == ("val", [2], saved_run)


def test_checkpoint_without_validation_is_an_error_listing_those_with_one(saved_run, tmp_path):
    (tmp_path / "checkpoints/step-7").mkdir(parents=True)
    shutil.copytree(saved_run / "trajectories", tmp_path / "trajectories")
    with pytest.raises(DataError, match=r"has no validation at step 7; steps with validation: 0, 2"):
        open_saved(f"{tmp_path}/checkpoints/step-7")
    with pytest.raises(DataError, match="a checkpoint has only validation rollouts"):
        open_saved(f"{saved_run}/checkpoints/step-2", "train")


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("{run}@3", "there is no step '3'; saved steps: 1 to 2"),
        ("{run}@lst", "there is no step 'lst'; did you mean 'last'?"),
        ("{run}/nowhere", "there is no '.*/nowhere'"),
        ("{run}/checkpoints", "contains no trajectories: expected trajectories/train"),
        (
            "{run}/../model",
            "/model' is a model, not rollouts: sample rollouts first with `agentrl generate model.path=",
        ),
        ("{run}/config.yaml", "not a readable file of trajectories"),
    ],
)
def test_missing_paths_and_steps_are_reported(saved_run, where, line):
    with pytest.raises(DataError, match=line):
        open_saved(where.format(run=saved_run))


def test_a_folder_whose_name_has_an_at_sign_is_a_folder(saved_run, tmp_path):
    folder = rewritten(saved_run, tmp_path / "run@2")
    assert list(open_saved(str(folder)).steps) == [1, 2]
    assert list(open_saved(f"{folder}@1").steps) == [1]


def test_invalid_json_configuration_is_named(saved_run, tmp_path):
    torn = rewritten(saved_run, tmp_path, provenance=lambda kept: {**kept, "config": "{"})
    with pytest.raises(DataError, match="the saved configuration is not JSON"):
        _ = open_saved(str(torn)).config


def test_saved_tokenizer_is_used(saved_run):
    run = open_saved(str(saved_run))
    row = next(run.rollouts())
    text = run.tokenizer().decode(row.rollout.trajectories[0].segments[0].token_ids)
    assert row.task.messages[-1]["content"] in text
    assert run.tokenizer_note() == ""
    assert run.tokenizer() is run.tokenizer()


def changed_tokenizer(saved_run: Path, folder: Path, part: str) -> Path:
    """A copy of the run's tokenizer with another template, or with one more token."""
    shutil.copytree(saved_run.parent / "model", folder)
    if part == "template":
        template = folder / "chat_template.jinja"
        template.write_text("{# changed #}" + template.read_text())
    else:
        vocabulary = folder / "tokenizer.json"
        document = json.loads(vocabulary.read_text())
        document["added_tokens"].append({**document["added_tokens"][0], "id": 9999, "content": "<|new|>"})
        vocabulary.write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("part", "words"),
    [("template", r"chat template \(chat_template_sha256\)"), ("vocabulary", r"vocabulary \(tokenizer_sha256\)")],
)
def test_changed_tokenizer_is_refused_unless_given_explicitly(saved_run, tmp_path, part, words):
    other = changed_tokenizer(saved_run, tmp_path / "model", part)
    model = {"model": {"path": str(other)}}
    run = open_saved(str(rewritten(saved_run, tmp_path / "run", provenance=with_config(**model))))
    with pytest.raises(ConfigError, match=f"the tokenizer in '{other}' has another {words} than the rollouts"):
        run.tokenizer()
    assert len(run.tokenizer(str(other))) > 10
    assert "than the rollouts" in run.tokenizer_note(str(other))


def test_run_without_checkpoint_uses_the_models_tokenizer(saved_run, tmp_path):
    run = open_saved(str(rewritten(saved_run, tmp_path)))
    assert run.tokenizer().get_vocab() == open_saved(str(saved_run)).tokenizer().get_vocab()


def test_code_of_a_tokenizer_is_not_run_though_the_run_allowed_it(saved_run, tmp_path):
    other = changed_tokenizer(saved_run, tmp_path / "model", "template")
    settings = other / "tokenizer_config.json"
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **own}))
    (other / "own.py").write_text("raise SystemExit('was run')")
    model = {"model": {"path": str(other), "trust_remote_code": True}}
    run = open_saved(str(rewritten(saved_run, tmp_path / "run", provenance=with_config(**model))))
    with pytest.raises(ConfigError):
        run.tokenizer()


def test_names_in_a_saved_run_are_never_looked_up_on_the_hub(saved_run, tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(loading, "check_hub", lambda name, key: asked.append(name))
    run = open_saved(str(rewritten(saved_run, tmp_path, provenance=with_config(model={"path": "owner/name"}))))
    with pytest.raises(ConfigError, match="used 'owner/name', which is not a local folder: give --tokenizer FOLDER"):
        run.tokenizer()
    assert not asked
    assert len(run.tokenizer(str(saved_run.parent / "model"))) > 10


def test_base_of_an_adapter_is_not_looked_up_on_the_hub(saved_run, tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(loading, "check_hub", lambda name, key: asked.append(name))
    (tmp_path / "adapter").mkdir()
    said = {"peft_type": "LORA", "base_model_name_or_path": "owner/name"}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(said))
    model = {"path": str(tmp_path / "adapter")}
    run = open_saved(str(rewritten(saved_run, tmp_path / "run", provenance=with_config(model=model))))
    with pytest.raises(ConfigError, match="not a local folder"):
        run.tokenizer()
    assert not asked


def test_the_newest_complete_checkpoint_has_the_tokenizer(saved_run, tmp_path):
    """Holds wherever `latest` points, and for any incomplete checkpoint."""
    run = rewritten(saved_run, tmp_path / "run", provenance=with_config(model={"path": "owner/name"}))
    for step in (1, 2, 3):
        shutil.copytree(saved_run.parent / "model", run / f"checkpoints/step-{step}")
    for step in (1, 2):
        (run / f"checkpoints/step-{step}/run_state.json").write_text('{"step": 1, "position": 0}')
    (run / "checkpoints/latest").symlink_to("step-1")
    assert run / "checkpoints/step-2" == Path(open_saved(str(run)).tokenizer().name_or_path)


def test_nearby_runs_are_suggested(saved_run, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "trajectories").mkdir(parents=True)
    hint = f"; runs nearby: {tmp_path}/a, {tmp_path}/b$"
    with pytest.raises(DataError, match=f"contains no trajectories.*{hint}"):
        open_saved(str(tmp_path))
    with pytest.raises(DataError, match=f"there is no '{tmp_path}/c'{hint}"):
        open_saved(str(tmp_path / "c"))


def test_rollouts_without_saved_tokenizer_need_one(saved_run, tmp_path):
    store = TrajectoryStore(tmp_path / "trajectories/train")
    store.write(1, TrajectoryStore(saved_run / "trajectories/train").groups(1))
    run = open_saved(str(tmp_path))
    with pytest.raises(ConfigError, match="saved no tokenizer name: give --tokenizer FOLDER"):
        run.tokenizer()
    run.tokenizer(str(saved_run.parent / "model"))
    assert "unknown whether" in run.tokenizer_note(str(saved_run.parent / "model"))
