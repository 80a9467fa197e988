"""Checks of the run comparison: it reports every change in a run, and ignores values from a clock."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from killed_runs import arguments
from same_run import compare, differences

from agentrl.cli.main import main

STEP = "checkpoints/step-1"


@pytest.fixture(scope="module")
def whole(task_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("same") / "whole"
    short = ["trainer.total_training_steps=1", "trainer.test_freq=1"]
    assert main([*arguments(task_folder, folder, "plain"), *short]) == 0
    (folder / "warnings.jsonl").write_text('{"step": 1, "warning": "w"}\n')
    return folder


@pytest.fixture
def other(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "other", symlinks=True))


def change_bytes(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def change_optimizer(file: Path) -> None:
    state = torch.load(file, weights_only=True)
    moment = max(tensors(state["optimizer"]), key=torch.numel)
    moment.view(-1)[0] += 1e-3
    torch.save(state, file)


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from tensors(each)


def change_random_state(file: Path) -> None:
    state = torch.load(file, weights_only=True)
    state["random"]["cpu"][7] ^= 1
    torch.save(state, file)


def change_json(key, value):
    def change(file: Path) -> None:
        first, *rest = file.read_text().splitlines()
        row = json.loads(first)
        assert row[key] != value
        file.write_text("\n".join([json.dumps(row | {key: value}), *rest]) + "\n")

    return change


def replace_text(before, after):
    return lambda file: file.write_text(file.read_text().replace(before, after))


def change_column(name, value):
    def change(file: Path) -> None:
        table = pq.read_table(file)
        values = [value(each) for each in table[name].to_pylist()]
        field = table.schema.field(name)
        index = table.schema.get_field_index(name)
        pq.write_table(table.set_column(index, field, pa.array(values, field.type)), file)

    return change


def first_token_changed(trajectories):
    trajectories[0]["segments"][1]["token_ids"][0] += 1
    return trajectories


def logprob_changed(trajectories):
    logprobs = trajectories[0]["segments"][1]["logprobs"]
    logprobs[0] = math.nextafter(logprobs[0], 0)
    return trajectories


def call_changed(calls):
    return [call | {"outcome": "timeout"} for call in calls]


def seals_changed(seals):
    return [seal ^ 1 for seal in seals]


def drop_last_line(file: Path) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def point_elsewhere(link: Path) -> None:
    link.unlink()
    link.symlink_to("step-2")


TRAIN, VAL = "trajectories/train/step-000001.parquet", "trajectories/val/step-000001.parquet"


@pytest.mark.slow
@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("name", "change", "place"),
    [
        (f"{STEP}/model.safetensors", change_bytes, "other bytes"),
        (f"{STEP}/trainer_state/state.pt", change_optimizer, "optimizer"),
        (f"{STEP}/trainer_state/state.pt", change_random_state, "random.cpu: another tensor"),
        (f"{STEP}/run_state.json", change_json("position", 99), "position: 2 and 99"),
        ("checkpoints/latest", point_elsewhere, "link: 'step-1' and 'step-2'"),
        ("metrics.jsonl", change_json("val/reward/mean", 0.25), "[0].val/reward/mean"),
        ("metrics.jsonl", drop_last_line, "2 and 1 entries"),
        ("generations.jsonl", change_json("output", "x"), "[0].output"),
        ("warnings.jsonl", change_json("warning", "x"), "[0].warning: 'w' and 'x'"),
        ("samples.json", lambda file: file.write_text("[]"), "4 and 0 entries"),
        (TRAIN, change_column("reward", lambda reward: math.nextafter(reward, 9)), "rows[0].reward"),
        (TRAIN, change_column("seed", lambda seed: seed ^ 1), "rows[0].seed"),
        (TRAIN, change_column("trajectories", first_token_changed), "segments[1].token_ids[0]"),
        (VAL, change_column("trajectories", logprob_changed), "segments[1].logprobs[0]"),
        (TRAIN, change_column("tool_calls", call_changed), "tool_calls[0].outcome: 'ok' and 'timeout'"),
        (TRAIN, change_column("seals", seals_changed), "rows[0].seals."),
        ("config.yaml", replace_text("n: 2", "n: 3"), "rollout.n: 2 and 3"),
    ],
)
def test_changed_keys_are_named(whole, other, name, change, place):
    change(other / name)
    found = differences(whole, other)
    assert found
    assert all(line.startswith(f"{name}: ") or line == "..." for line in found)
    assert place in found[0]


def timed_anew(calls):
    return [call | {"duration_s": 9.0, "started_s": 9.0} for call in calls]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("metrics.jsonl", change_json("timing_s/validate", 9.0)),
        ("metrics.jsonl", change_json("val/rollout_s/max", 9.0)),
        (TRAIN, change_column("duration_s", lambda _: 9.0)),
        (TRAIN, change_column("tool_calls", timed_anew)),
        ("config.yaml", replace_text("resume_mode: auto", "resume_mode: path")),
    ],
)
def test_clock_values_are_ignored(whole, other, name, change):
    before = (other / name).read_bytes()
    change(other / name)
    assert (other / name).read_bytes() != before
    assert differences(whole, other) == []


def test_seals_of_clock_values_are_not_compared(whole, other):
    seals = pq.read_table(other / TRAIN)["seals"].to_pylist()
    change_column("seals", seals_changed)(other / TRAIN)
    clocks = 4  # duration_s of the rollout and of its calls, started_s, facts
    assert len(list(compare(TRAIN, whole / TRAIN, other / TRAIN))) == sum(len(each) - clocks for each in seals)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [f"{STEP}/config.json", "checkpoints/best", VAL])
def test_missing_and_extra_files_are_named(whole, other, name):
    (other / name).unlink()
    assert differences(whole, other) == differences(other, whole) == [f"{name}: only in one of the two"]


def test_folders_without_a_run_are_not_the_same(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        differences(tmp_path, tmp_path)
