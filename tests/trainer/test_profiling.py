"""Profiles of steps: traces of torch.profiler, and ranges for nsys with a recorded CUDA API."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import test_start_messages
import torch

from agentrl.config.rules.combinations import idle_options
from agentrl.config.run import RunConfig
from agentrl.config.trainer import TrainerConfig
from agentrl.errors import ConfigError, Kind
from agentrl.telemetry.timing import Timer
from agentrl.trainer import profiling
from agentrl.trainer.profiling import NsysRange, StepProfiler, check_profiler, phases

NSYS = TrainerConfig(profiler="nsys", profile_steps=(2,))


@pytest.fixture
def one_process(monkeypatch):
    """Also if this process has joined others for other tests."""
    monkeypatch.setattr(profiling, "joined", lambda: None)


def events(path):
    return {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}


def test_a_trace_sees_what_another_thread_computes(tmp_path, capfd, one_process):
    def work():
        return torch.ones(4, 4) @ torch.ones(4, 4)

    with ThreadPoolExecutor(1) as pool, StepProfiler(tmp_path / "profile", [2]) as profiler:
        for step in (1, 2, 3):
            profiler.begin(step)
            pool.submit(work).result()
            profiler.end(step)
    assert [file.name for file in (tmp_path / "profile").iterdir()] == ["step-2.json"]
    assert "aten::mm" in events(tmp_path / "profile/step-2.json")
    assert capfd.readouterr().err == ""  # torch's profiler would print its start and stop


def test_an_error_in_a_profiled_step_leaves_no_profiler_behind(tmp_path, one_process):
    for number in (1, 2):  # the second could not start if the first still ran
        with suppress(KeyError), StepProfiler(tmp_path / f"{number}", [1]) as profiler:
            profiler.begin(1)
            raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the CUDA profiler and of NVTX, in order."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("capture"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("end of capture"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    monkeypatch.setattr(profiling.nvtx, "range_start", lambda name: calls.append(f"<{name}>") or f"</{name}>")
    monkeypatch.setattr(profiling.nvtx, "range_end", calls.append)
    return calls


def test_nsys_captures_the_chosen_steps_with_their_phases(tmp_path: Path, calls: list[str], one_process: None):
    timer = Timer(annotate=phases(NSYS))
    with StepProfiler(tmp_path / "profile", NSYS.profile_steps, NSYS.profiler) as profiler:
        for step in (1, 2, 3):
            profiler.begin(step)
            with timer.timed(f"learn {step}"):
                calls.append("kernels")
            profiler.end(step)
    before, captured, after = ([f"<learn {step}>", "kernels", f"</learn {step}>"] for step in (1, 2, 3))
    ended = ["wait", "</step-2>", "end of capture"]
    assert calls == [*before, "capture", "<step-2>", *captured, *ended, *after]
    assert [*timer.take()] == ["timing_s/learn 1", "timing_s/learn 2", "timing_s/learn 3"]
    assert not (tmp_path / "profile").exists()  # nsys writes the report


def test_phases_that_overlap_and_fail_are_ended(calls: list[str]):
    timer = Timer(annotate=phases(NSYS))
    with suppress(KeyError), timer.timed("collect"), timer.timed("tool"):
        raise KeyError
    assert calls == ["<collect>", "<tool>", "</tool>", "</collect>"]


@pytest.mark.parametrize("config", [TrainerConfig(profile_steps=(2,)), TrainerConfig(profiler="nsys")])
def test_phases_are_marked_for_nsys_only(config: TrainerConfig, calls: list[str]):
    with Timer(annotate=phases(config)).timed("learn"):
        pass
    assert calls == []


def test_a_step_that_fails_ends_the_capture(tmp_path: Path, calls: list[str], one_process: None):
    with suppress(KeyError), StepProfiler(tmp_path, [1], "nsys") as profiler:
        profiler.begin(1)
        raise KeyError
    assert calls == ["capture", "<step-1>", "wait", "</step-1>", "end of capture"]


class Other:
    """What a call on rank 1 sees."""

    rank = 1

    def __init__(self) -> None:
        self.held: dict[int, NsysRange] = {}


def test_further_ranks_capture_too(tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch):
    other = Other()

    class Two:
        size = 2

        def each(self, function, arguments: list[tuple[object, ...]]) -> None:
            assert len(arguments) == self.size
            function(other, *arguments[1])

    monkeypatch.setattr(profiling, "joined", Two)
    profiler = StepProfiler(tmp_path, [1], "nsys")
    profiler.begin(1)
    assert calls == ["capture", "<step-1>"] * 2
    profiler.end(1)
    assert calls[4:] == ["wait", "</step-1>", "end of capture"] * 2
    assert other.held == {}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command nsys, which starts the rest of its command line in the environment of nsys."""
    command = tmp_path / "bin/nsys"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\nNSYS_PROFILING_SESSION_ID=1 exec "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    return command


def refusal(config: TrainerConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        check_profiler(config)
    assert [(each.key, each.kind) for each in caught.value.problems] == [("trainer.profiler", Kind.NOT_SUPPORTED)]
    return str(caught.value)


def test_nsys_is_refused_without_a_gpu(nsys: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "'trainer.profiler=nsys' needs a CUDA GPU" in refusal(NSYS)
    check_profiler(TrainerConfig(profile_steps=(2,)))


def test_nsys_is_refused_without_its_command(gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "which is not on the PATH" in refusal(NSYS)


def test_a_run_outside_of_nsys_prints_the_command(gpu: None, nsys: Path, capsys: pytest.CaptureFixture[str]):
    check_profiler(NSYS)
    (line,) = capsys.readouterr().out.splitlines()
    assert "start the run under nsys" in line
    assert "--capture-range=cudaProfilerApi" in line


def test_a_run_under_nsys_prints_nothing(
    gpu: None, nsys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    check_profiler(NSYS)
    assert capsys.readouterr().out == ""


def test_a_profiler_without_steps_has_no_effect():
    config = RunConfig.model_validate({"model": {"path": "m"}, "trainer": {"profiler": "nsys"}})
    assert ("trainer.profiler", Kind.UNUSED) in [(each.key, each.kind) for each in idle_options(config)]


run = test_start_messages.run


@pytest.mark.slow
def test_a_run_marks_its_phases_and_captures_its_step(
    run, calls: list[str], gpu: None, nsys: Path, one_process: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    run(mode="rollout_only", total_training_steps=3, profile_steps="[2]", profiler="nsys")
    assert calls.count("capture") == calls.count("end of capture") == 1
    captured = calls[calls.index("capture") : calls.index("end of capture")]
    assert "<collect>" in calls[: calls.index("capture")]
    assert captured[:2] == ["capture", "<step-2>"]
    assert {"<collect>", "</collect>", "<store>", "</store>"} <= {*captured}
