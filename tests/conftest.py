"""Shared fixtures: Ctrl-C handling, the calculator task (built once by its own script), an SGLang server."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from sglang_server import _session_server, sglang_model, sglang_server  # noqa: F401  (fixtures)

from agentrl import capabilities
from agentrl.capabilities import BACKEND_OPTIONS, BACKENDS, BackendSpec
from agentrl.telemetry.jsonl import JsonlTracker
from agentrl.telemetry.metrics import find_metric

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job and its children would ignore Ctrl-C

# the same cases on every machine, and no time limit on a busy one
settings.register_profile("all", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("few", settings.get_profile("all"), max_examples=20)
# Hypothesis inserts constants of all modules that are imported by then, so the cases depend on the order of the tests.
# These texts instead, which mean something to chat templates, tokenizers and parsers
SPELLED = {
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[TOOL_CALLS]"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "[THINK]"),
    *("<|channel|>", "<|call|>", "<|end|>", "<|return|>", "<|python_tag|>", "<arg_value>", "</arg_value>"),
    *("<function=f>", "</parameter>", "Action:", "Observation:", "<image>", "{{ x }}", "${oc.env:HOME}"),
}
CONSTANTS = Constants(strings=providers.SortedSet(SPELLED))
providers._get_local_constants = lambda: CONSTANTS

CALCULATOR = Path(__file__).parents[1] / "examples/calculator"
PEERS = Path(__file__).parents[1] / "benchmarks/peers"


def pytest_configure(config: pytest.Config) -> None:
    """`make test-nightly` runs property tests with more examples than the other commands."""
    settings.load_profile("few" if "not nightly" in config.option.markexpr else "all")
    gc.disable()  # imported modules and collected tests are millions of objects that nothing frees
    if hasattr(config, "workerinput"):  # a process of pytest-xdist: freeing them all would take it 10 s
        atexit.register(os._exit, 0)
    else:
        atexit.register(gc.unfreeze)  # libraries report objects that are left at exit


def pytest_collection_finish() -> None:
    """Leave those objects out of each later garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark property tests, and all but every n-th case of a test with `one_in(n)` as nightly; put `minutes` first.

    A process that begins with the longest file does not finish long after the other one.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")
        if item.get_closest_marker("one_in"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    num_tests: Counter[Path] = Counter()
    for of_test in cases.values():
        mark_further(of_test, num_tests[of_test[0].path])
        num_tests[of_test[0].path] += 1
    items.sort(key=lambda item: item.get_closest_marker("minutes") is None)


def mark_further(cases: list[pytest.Item], number: int) -> None:
    """Mark as nightly all cases of a test but one of n. The next n are shifted by one, so all parameters get a turn.

    In a file with the mark, such as a contract suite, the first case is shifted by the number of the test in it.
    """
    (n,) = cases[0].get_closest_marker("one_in").args
    n = min(n, len(cases))
    first = 0 if any(mark.name == "one_in" for mark in cases[0].own_markers) else number
    for index, case in enumerate(cases):
        if (index + index // n - first) % n:
            case.add_marker("nightly")


@pytest.fixture
def megatron(monkeypatch) -> Callable[..., None]:
    """A backend `megatron` that reads every option but FSDP's, without its libraries.

    Returns a function that registers it again, with other capabilities.
    """
    planned = getattr(capabilities, "PLANNED_BACKENDS", {})  # until the backend is registered
    monkeypatch.delitem(planned, "megatron", raising=False)
    monkeypatch.setattr(BACKENDS, "_objects", {**BACKENDS._objects})
    options = set(BACKEND_OPTIONS) - {
        *("autocast", "fsdp_size", "reshard_after_forward", "ulysses_sequence_parallel_size")
    }

    def register(**capabilities: object) -> None:
        every = {"lora": True, "value_head": True, "routed_experts": True, "several_processes": True}
        spec = BackendSpec(load=print, **{"options": frozenset(options), **every, **capabilities})
        BACKENDS.register("megatron")(spec)

    register()
    return register


@pytest.fixture(scope="session")
def make_task():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CALCULATOR))
        for file in CALCULATOR.glob("*.py"):  # another test may have imported a file of that name
            patch.delitem(sys.modules, file.stem, raising=False)
        import make_task

        yield make_task.make_task


@pytest.fixture(scope="session")
def task_folder(make_task, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("calculator")
    make_task(folder, seed=0)
    return folder


@pytest.fixture(autouse=True)
def declared_metrics(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Fails a test that logs an undeclared metric; `own_metrics` marks tests that log metrics of user code."""
    undeclared: set[str] = set()
    log = JsonlTracker.log

    def watched(self: JsonlTracker, step: int, metrics: Mapping[str, float]) -> None:
        undeclared.update(name for name in metrics if find_metric(name) is None)
        log(self, step, metrics)

    monkeypatch.setattr(JsonlTracker, "log", watched)
    yield undeclared
    if not request.node.get_closest_marker("own_metrics"):
        assert sorted(undeclared) == [], "declare these metrics in agentrl/telemetry/metrics"


@pytest.fixture
def peer_python(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Returns the Python of a peer library's environment, which is created first."""

    def python_of(name: str) -> Path:
        monkeypatch.syspath_prepend(str(PEERS))
        import environment

        try:
            return environment.peer_python(name)
        except subprocess.CalledProcessError:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"the environment of {name} cannot be made here")

    return python_of


@pytest.fixture
def run_peer(peer_python: Callable[[str], Path]) -> Callable[..., Any]:
    """Runs a script in a peer library's environment. Any: the JSON in its last output line."""

    def run(name: str, script: Path, *arguments: Path) -> Any:
        python = peer_python(name)
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([python, script, *arguments], capture_output=True, text=True, timeout=400, env=offline)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
