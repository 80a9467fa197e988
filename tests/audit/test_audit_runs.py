"""Audits of runs with every kind of loop, and of files with missing information. Unchecked rollouts never pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from altered_files import write
from audited_runs import make_run
from older_files import as_version_3, as_version_4, as_version_5, as_version_6, as_version_7

from agentrl.audit.auditor import Auditor
from agentrl.audit.base import Ledger
from agentrl.audit.template import num_model_ids

REACT = """
from collections import Counter
from zlib import crc32
SEEN = Counter()

def reply(context):
    SEEN[context] += 1
    n = crc32(context.encode()) + SEEN[context]
    return ['Thought: so\\nAction: look\\nAction Input: {"place": "p%d"}\\n' % n, "Action: look",
            f"Final Answer: {n % 3}", "Action: luk\\nAction Input: {}\\nObservation: 3"][n % 4]
"""
OWN_LOOP = """
from agentrl.agent_loops.base import AgentLoop

class Twice(AgentLoop):
    async def run(self, task, generate, tools, interaction, sampling):
        for _ in range(2):
            chat = self.open(task, generate, tools, None, sampling)
            if (turn := await chat.model_turn()) and turn.calls:
                await chat.tool_turn(turn)
        return chat.rollout()
"""


def audited(run: Path, *, complete: bool = False, **options) -> Ledger:
    files = sorted((run / "trajectories").rglob("*.parquet"))
    return Auditor(folder=run, **options).audit(files, complete=complete)


def broken(ledger: Ledger) -> set[str]:
    return {name for name, finding in ledger.findings.items() if finding.num_problems}


def unchecked(ledger: Ledger) -> set[str]:
    return {name for name, finding in ledger.findings.items() if finding.status == "not checkable"} - {"rescored"}


def short(folder: Path, task_folder: Path, *overrides: str) -> Path:
    return make_run(folder, task_folder, "trainer.total_training_steps=1", "data.val_files=[]", *overrides)


@pytest.mark.slow
def test_react_is_read_by_its_own_reader(tmp_path, task_folder):
    (tmp_path / "react.py").write_text(REACT)
    script = f"rollout.script_path={tmp_path}/react.py:reply"
    limits = ["data.max_prompt_length=400", "rollout.multi_turn.max_tool_calls=null"]
    run = short(tmp_path, task_folder, "rollout.agent.default_agent_loop=react_agent", script, *limits)
    ledger = audited(run)
    assert (broken(ledger), unchecked(ledger)) == (set(), set())
    (table,) = [pq.read_table(file) for file in (run / "trajectories").rglob("*.parquet")]
    assert {call["outcome"] for calls in table["tool_calls"].to_pylist() for call in calls} >= {"ok", "format_error"}


@pytest.mark.slow
def test_calls_in_an_unknown_format_are_reported_as_unchecked(audited_run):
    ledger = audited(audited_run, overrides={"rollout": {"multi_turn": {"format": "sglang/qwen"}}})
    assert unchecked(ledger) == {"calls", "answers", "outcomes"}
    assert broken(ledger) == {"operations"}  # they record the format with which the calls were parsed


@pytest.mark.slow
def test_single_turn_run_with_a_full_reward_passes_the_audit(tmp_path, task_folder):
    keys = ["rollout.agent.default_agent_loop=single_turn_agent", "rollout.multi_turn.function_tool_path=null"]
    ledger = audited(short(tmp_path, task_folder, *keys, "reward.include_tool_text=true"))
    assert (broken(ledger), unchecked(ledger)) == (set(), {"answer tokens"})


@pytest.mark.slow
def test_tool_text_in_the_scored_text_follows_the_configuration(tmp_path, task_folder):
    run = short(tmp_path, task_folder, "reward.include_tool_text=true")
    assert broken(audited(run)) == set()
    assert broken(audited(run, overrides={"reward": {"include_tool_text": False}})) == {"scored text"}


LOOPS = "- {name: own, _target_: own.Loop}\n"
GENERATED = ["trainer.mode=rollout_only", "trainer.total_training_steps=null"]
HEALTHY = {
    "a last step of generation is what is left": GENERATED,
    "nothing was to be scored": [*GENERATED, "reward.name=none", "reward.custom_reward_function.path=null"],
    "answers are cut, the loop's own words are not": ["rollout.multi_turn.max_tool_response_length=3"],
    "rows choose no tool": ["data.train_files={folder}/none.jsonl"],
    "other loops were named": ["rollout.agent.agent_loop_config_path={folder}/loops.yaml"],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("keys", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_run_passes(keys, tmp_path, task_folder):
    (tmp_path / "loops.yaml").write_text(LOOPS)
    rows = [json.loads(line) for line in (task_folder / "train.jsonl").read_text().splitlines()[:8]]
    (tmp_path / "none.jsonl").write_text("".join(json.dumps({**row, "tool_selection": []}) + "\n" for row in rows))
    ledger = audited(short(tmp_path, task_folder, *(key.format(folder=tmp_path) for key in keys)), complete=True)
    assert broken(ledger) == {name for name, finding in ledger.findings.items() if finding.uncheckable} == set()
    assert ledger.findings["calls"].status == "passed"


@pytest.mark.slow
def test_run_may_resume_with_a_smaller_batch(tmp_path, task_folder):
    short(tmp_path, task_folder, "trainer.total_training_steps=3")
    run = short(
        tmp_path, task_folder, "trainer.total_training_steps=4", "data.train_batch_size=2", "trainer.resume_mode=auto"
    )
    ledger = audited(run, complete=True)
    assert (broken(ledger), ledger.findings["groups"].num_checked) == (set(), 80)


def test_custom_loops_of_a_run_are_recognized(audited_run, tmp_path):
    table = pq.read_table(audited_run / "trajectories/train/step-000001.parquet")
    for loops, why in (('["tool_agent"]', "agent loop 'tool_agent' is not built in"), (None, "were not saved")):
        config = {"rollout": {"agent": {"agent_loop_config_path": "loops.yaml"}}}
        kept = {**table.schema.metadata, b"agentrl.provenance.loops": (loops or "null").encode()}
        pq.write_table(table.replace_schema_metadata(kept), tmp_path / "step-000001.parquet")
        ledger = Auditor(folder=audited_run, overrides=config).audit([tmp_path / "step-000001.parquet"])
        assert (broken(ledger), unchecked(ledger)) == (set(), set())  # known by their operations
        as_version_5(tmp_path / "step-000001.parquet")
        ledger = Auditor(folder=audited_run, overrides=config).audit([tmp_path / "step-000001.parquet"])
        assert "calls" in unchecked(ledger)
        assert any(why in reason for reason in ledger.findings["calls"].unchecked)


@pytest.mark.slow
def test_run_of_a_custom_loop_passes_the_full_audit(tmp_path, task_folder):
    (tmp_path / "own.py").write_text(OWN_LOOP)
    run = short(tmp_path, task_folder, f"rollout.agent.default_agent_loop={tmp_path}/own.py:Twice")
    ledger = audited(run)
    assert (broken(ledger), unchecked(ledger)) == (set(), set())


@pytest.mark.slow
def test_older_runs_of_a_custom_loop_are_checked_as_far_as_possible(tmp_path, task_folder):
    (tmp_path / "own.py").write_text(OWN_LOOP)
    run = short(tmp_path, task_folder, f"rollout.agent.default_agent_loop={tmp_path}/own.py:Twice")
    for path in (run / "trajectories").rglob("*.parquet"):
        as_version_5(path)
    ledger = audited(run)
    assert broken(ledger) == set()
    texts = {"prompt tokens", "answer tokens", "calls", "answers", "outcomes"}
    assert unchecked(ledger) == {*texts, "operations"}
    assert {name for name, found in ledger.findings.items() if found.uncheckable} == texts
    assert any("is not built in" in why for why in ledger.findings["calls"].unchecked)
    assert ledger.findings["advantages"].status == ledger.findings["scored text"].status == "passed"


@pytest.mark.slow
def test_readvantage_applies_overrides(audited_run):
    limits = {"rollout": {"multi_turn": {"max_turn_tokens": 20}}}
    assert "limits" in broken(audited(audited_run, overrides=limits))
    assert broken(audited(audited_run, overrides={"rollout": {"temperature": 1.0}})) == {"temperature"}
    assert broken(audited(audited_run, overrides={"trainer": {"seed": 8}})) == {"identity"}
    assert broken(audited(audited_run, overrides={"algorithm": {"norm_adv_by_std_in_grpo": False}})) == {"advantages"}
    assert unchecked(audited(audited_run, overrides={"algorithm": {"adv_estimator": "own"}})) == set()


def changed_tokenizer(task_folder: Path, folder: Path, *, template: bool) -> str:
    shutil.copytree(task_folder / "model", folder)
    if template:
        file = folder / "chat_template.jinja"
        file.write_text(file.read_text().replace("system\\n", "system \\n"))
    else:
        file = folder / "tokenizer.json"
        kept = json.loads(file.read_text())
        vocab = kept["model"]["vocab"]
        vocab["!"], vocab["#"] = vocab["#"], vocab["!"]
        file.write_text(json.dumps(kept))
    return str(folder)


@pytest.mark.parametrize("template", [True, False])
def test_a_changed_tokenizer_or_template_is_named(template, audited_run, task_folder, tmp_path):
    ledger = audited(audited_run, tokenizer=changed_tokenizer(task_folder, tmp_path / "changed", template=template))
    assert broken(ledger) == {"template" if template else "tokenizer"}
    assert "prompt tokens" in unchecked(ledger)
    assert ("calls" in unchecked(ledger)) != template


def test_audit_without_tokenizer_fails_text_checks(audited_run, tmp_path):
    ledger = audited(audited_run, tokenizer=str(tmp_path / "gone"))
    assert broken(ledger) == set()
    tokens = {"prompt tokens", "further prompts", "answer tokens"}
    text = {"tokenizer", "template", *tokens, "calls", "answers", "outcomes", "scored text"}
    assert unchecked(ledger) == text


@pytest.mark.parametrize("imported", [True, False])
def test_imported_dump_fails_the_audit(imported, audited_run, tmp_path):
    """Rows without tokens and without provenance, which only imported rows may lack."""
    (file,) = (audited_run / "trajectories/train").glob("step-000001.parquet")
    table = pq.read_table(file)
    rows = table.to_pylist()
    for row in rows:
        row.update(scored_text_sha256=None)
        for trajectory in row["trajectories"]:
            trajectory.update(segments=[], advantages=None)
    origin = {"agentrl.provenance.imported_from": "trl"} if imported else {}
    bare = table.replace_schema_metadata({"agentrl.schema_version": "8", **origin})
    write(bare, rows, tmp_path / "step-000001.parquet", sealed=True)
    ledger = Auditor().audit([tmp_path / "step-000001.parquet"])
    assert broken(ledger) == (set() if imported else {"file"})
    expected = {"tokenizer", "template", "identity", "prompt tokens", "answer tokens", "calls", "answers", "outcomes"}
    assert {*expected, "advantages", "limits", "scored text", "segments"} <= unchecked(ledger)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("as_older", "num_leaves"),
    [(as_version_3, 12), (as_version_4, 12), (as_version_5, 11), (as_version_6, 2), (as_version_7, 1)],
)
def test_older_file_still_passes_the_audit(as_older, num_leaves, audited_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(audited_run, run)
    for path in (run / "trajectories").rglob("*.parquet"):
        as_older(path)
    before, after = audited(audited_run), audited(run)
    assert broken(after) == set()
    num_rows = sum(len(pq.read_table(path)) for path in (run / "trajectories").rglob("*.parquet"))
    num_new = num_rows * num_leaves  # of the columns `operations`, `excluded` and `facts`, and of `weight`
    assert after.findings["seals"].num_checked == before.findings["seals"].num_checked - num_new > 0


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path):
    path = tmp_path / "step-000003.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    (problem,) = Auditor().audit([path]).findings["file"].problems
    assert (problem.step, problem.column) == (3, "step-000003.parquet")


@pytest.mark.parametrize("name", ["config", "tools", "tokenizer_sha256", "chat_template_sha256"])
def test_file_without_provenance_is_a_problem(name, audited_run, tmp_path):
    table = pq.read_table(audited_run / "trajectories/train/step-000001.parquet")
    kept = {key: value for key, value in table.schema.metadata.items() if key.decode() != f"agentrl.provenance.{name}"}
    pq.write_table(table.replace_schema_metadata(kept), tmp_path / "step-000001.parquet")
    (problem,) = Auditor(folder=audited_run).audit([tmp_path / "step-000001.parquet"]).findings["file"].problems
    assert problem.column == f"metadata provenance.{name}"


@pytest.mark.parametrize(
    ("split", "gone", "metrics", "missing"),
    [
        ("train", [1], True, [1]),
        ("train", [2], True, [2]),
        ("train", [1], False, [1]),
        ("train", [2], False, []),  # no record shows that it was excluded
        ("val", [0], True, [0]),
        ("val", [0], False, []),
    ],
)
def test_steps_without_a_file_are_named(split, gone, metrics, missing, audited_run, tmp_path):
    run = shutil.copytree(audited_run, tmp_path / "run", symlinks=True)
    for step in gone:
        (run / f"trajectories/{split}/step-{step:06d}.parquet").unlink()
    if not metrics:
        (run / "metrics.jsonl").unlink()
    files = sorted((run / "trajectories" / split).glob("*"))
    found = Auditor(split, folder=run).audit(files, complete=True).findings["file"]
    assert [problem.step for problem in found.problems] == missing
    assert bool(found.unchecked) != metrics
    assert not Auditor(split, folder=run).audit(files).findings["file"].problems


def test_run_started_from_another_run_does_not_change_that_run(audited_run):
    (file,) = (audited_run / "trajectories/train").glob("step-000002.parquet")
    elsewhere = {"trainer": {"resume_mode": "path", "resume_from_path": "other/checkpoints/step-1"}}
    for overrides, missing in (({}, [1]), (elsewhere, [])):
        found = Auditor("train", overrides=overrides).audit([file], complete=True).findings["file"]
        assert [problem.step for problem in found.problems] == missing


def test_damaged_model_configuration_gives_no_vocabulary_size(tmp_path):
    for name, text in (("broken", "{not json"), ("other", "[]"), ("good", '{"text_config": {"vocab_size": 7}}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    folders = [str(tmp_path / name) for name in ("broken", "other", "good")]
    assert (num_model_ids(folders[:2]), num_model_ids(folders)) == (0, 7)


def test_a_missing_row_and_a_missing_column_are_named(audited_run, tmp_path):
    table = pq.read_table(audited_run / "trajectories/train/step-000001.parquet")
    path = tmp_path / "step-000001.parquet"
    pq.write_table(pa.concat_tables([table.slice(0, 1), table.slice(2)]), path)
    found = Auditor(folder=audited_run).audit([path]).findings
    assert {problem.column for problem in found["groups"].problems} == {"rollout", "uid"}
    pq.write_table(table.drop_columns(["seed"]), path)
    (problem,) = Auditor().audit([path]).findings["file"].problems
    assert "'seed' is missing" in problem.found


def test_file_with_several_steps_is_split(audited_run, tmp_path):
    tables = [pq.read_table(path) for path in sorted((audited_run / "trajectories/train").glob("*"))]
    pq.write_table(pa.concat_tables(tables), tmp_path / "all.parquet")
    auditor = Auditor(folder=audited_run)
    both, one = auditor.audit([tmp_path / "all.parquet"]), auditor.audit([tmp_path / "all.parquet"], [2])
    assert (broken(both), broken(one)) == (set(), set())
    assert (both.findings["groups"].num_checked, one.findings["groups"].num_checked) == (48, 24)
