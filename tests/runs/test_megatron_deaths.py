"""Runs of the Megatron backend survive the death of a process in any phase, and repeat its updates bit for bit."""

from __future__ import annotations

import pytest
from test_several_devices import DEATHS, check_deaths, run_uninterrupted

pytestmark = pytest.mark.megatron

LAYOUT = ("actor.backend=megatron", "actor.megatron.tensor_model_parallel_size=2")
CASES = [
    pytest.param(["1:save:SIGKILL"], True, id="killed once"),
    *(pytest.param(deaths, "background" in name, id=name, marks=pytest.mark.slow) for name, deaths in DEATHS.items()),
]


@pytest.fixture(scope="module")
def uninterrupted(task_folder, tmp_path_factory) -> dict[int, dict[str, float]]:
    return run_uninterrupted(task_folder, tmp_path_factory.mktemp("run"), len(DEATHS["killed"]) + 2, *LAYOUT)


@pytest.mark.nightly
@pytest.mark.parametrize(("deaths", "in_background"), CASES)
def test_the_run_continues_with_the_same_updates(task_folder, tmp_path, uninterrupted, deaths, in_background):
    check_deaths(task_folder, tmp_path, deaths, uninterrupted, *LAYOUT, f"trainer.async_save={in_background}")
