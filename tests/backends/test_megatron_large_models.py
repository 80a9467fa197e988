"""Megatron's parts of the large models: every process's shapes, built without memory in a world of that size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path

import large_parts
import pytest
from large_models import WITH_MEGATRON, config_of, weights_of

pytestmark = pytest.mark.megatron


def parts_of(name: str, ranks: Sequence[int]) -> list[list[tuple[str, list[int], int]]]:
    """Name, shape and number of shards of each weight of these processes."""
    command = [sys.executable, Path(large_parts.__file__), name, *map(str, ranks)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def first_processes(name: str) -> range:
    """The first process of each pipeline stage."""
    num_processes, layout = config_of(name).trainer.num_processes, config_of(name).actor.megatron
    return range(0, num_processes, num_processes // layout.pipeline_model_parallel_size)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", WITH_MEGATRON)
def test_the_parts_of_all_stages_are_the_complete_model(name):
    """A weight of a stage's first process counts as often as there are processes that share it."""
    parts = parts_of(name, first_processes(name))
    total = sum(prod(shape) * num_shards for part in parts for _, shape, num_shards in part)
    assert total == sum(weights_of(name).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_MEGATRON)
def test_all_processes_of_a_stage_have_the_same_shapes(name):
    parts, firsts = parts_of(name, range(config_of(name).trainer.num_processes)), first_processes(name)
    assert [part == parts[rank - rank % firsts.step] for rank, part in enumerate(parts)] == [True] * len(parts)
