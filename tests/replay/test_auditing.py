"""`agentrl replay RUN audit` as a check in continuous integration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.audit.base import INVARIANTS
from agentrl.cli.main import main


def values_of(capsys, *words: object) -> list[dict]:
    """The results, as JSON; the command must succeed."""
    assert main(["replay", *map(str, words), "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)["results"]


def altered(run: Path, folder: Path) -> Path:
    """A copy whose first rollout has another reward."""
    shutil.copytree(run, folder, symlinks=True)
    file = folder / "trajectories/train/step-000002.parquet"
    table = pq.read_table(file)
    rewards = [9.0, *table["reward"].to_pylist()[1:]]
    place = table.schema.get_field_index("reward")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(rewards)), file)
    return folder


def test_a_run_passes_and_reports_what_was_checked(saved_run, capsys):
    for split in ("train", "val"):
        (result,) = values_of(capsys, saved_run, "audit", "--split", split)
        assert not result["failed"]
        assert set(result["values"]) == set(INVARIANTS) - {"rescored"}
        told = {name: found["status"] for name, found in result["values"].items()}
        assert {told[name] for name in ("seals", "identity", "prompt tokens", "calls", "scored text")} == {"passed"}
        assert "failed" not in result["summary"]


def test_one_altered_value_ends_with_status_1_and_its_place(saved_run, tmp_path, capsys):
    assert main(["replay", str(altered(saved_run, tmp_path / "run")), "audit"]) == 1
    said = capsys.readouterr().out
    assert "failed (seals, " in said
    assert "step-000002" not in said
    for part in ("seals", "reward"):
        assert part in said
    assert main(["replay", f"{tmp_path}/run@1", "audit"]) == 0  # the other step is complete


def test_new_reward_is_compared_with_saved_scores(saved_run, tmp_path, capsys):
    (tmp_path / "reward.py").write_text("def constant(solution_str):\n    return 0.123\n")
    rescored = ["rescore", "audit", "--reward"]
    own = shutil.copy(saved_run.parent / "reward.py", tmp_path / "own.py")
    *_, result = values_of(capsys, saved_run, *rescored, f"{own}:compute_score")
    assert result["values"]["rescored"]["status"] == "passed"
    assert main(["replay", str(saved_run), *rescored, f"{tmp_path}/reward.py:constant"]) == 1
    assert "rescored" in capsys.readouterr().out


def bare(run: Path, folder: Path, **provenance: str) -> Path:
    """The training rollouts with these metadata entries only."""
    shutil.copytree(run / "trajectories/train", folder)
    kept = {"agentrl.schema_version": "8", **{f"agentrl.provenance.{k}": v for k, v in provenance.items()}}
    for file in folder.glob("*.parquet"):
        pq.write_table(pq.read_table(file).replace_schema_metadata(kept), file)
    return folder


def test_unchecked_rollouts_fail_unless_allowed(saved_run, tmp_path, capsys):
    store = bare(saved_run, tmp_path / "store", imported_from="trl")
    (result,) = values_of(capsys, store, "audit", "--allow-unchecked")
    assert not result["failed"]
    assert "not checkable (tokenizer, template, identity, " in result["summary"]
    assert list(result["values"]["identity"]["not_checkable"]) == ["no saved configuration"]
    assert main(["replay", str(store), "audit"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "failed because tokenizer, template, identity, " in said
    assert "--allow-unchecked" in said


def test_run_without_provenance_always_fails_the_audit(saved_run, tmp_path, capsys):
    assert main(["replay", str(bare(saved_run, tmp_path / "store")), "audit", "--allow-unchecked"]) == 1
    assert "failed (file)" in capsys.readouterr().out


def test_missing_steps_fail_unless_one_step_is_asked_for(saved_run, tmp_path, capsys):
    run = shutil.copytree(saved_run, tmp_path / "run", symlinks=True)
    (run / "trajectories/train/step-000001.parquet").unlink()
    assert main(["replay", str(run), "audit"]) == 1
    assert "step-000001.parquet" in capsys.readouterr().out
    file = run / "trajectories/train/step-000002.parquet"
    for asked in (f"{run}@2", f"{run}@last", file):
        assert main(["replay", str(asked), "audit"]) == 0


@pytest.mark.slow
def test_rollouts_of_a_replay_pass(saved_run, tmp_path, capsys):
    """Continued rollouts include turns from the recording."""
    words = ["--reward", "exact_match", "--unrecorded", "stub", "--out", tmp_path, "rollout.max_num_seqs=16"]
    words.append(f"model.path={saved_run.parent}/model")
    for modes in (("tools",), ("from-turn", 1, "rollout.n=2")):
        values_of(capsys, f"{saved_run}@2", *modes, *words)
    for name in ("tools", "from-turn-1"):
        (result,) = values_of(capsys, tmp_path / name, "audit")
        values = result["values"]
        assert {values[each]["status"] for each in ("identity", "calls", "scored text", "segments")} == {"passed"}
        assert any("replayed" in why for why in values["policy versions"]["not_checkable"])
