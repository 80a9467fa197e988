"""Options that do not work with one process per device are refused."""

from __future__ import annotations

import pytest
from complaints import keys_and_kinds, problems_of

from agentrl.errors import Kind

TWO = {"n_gpus_per_node": 2}


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"trainer": {"max_restarts": 1}}, ("trainer.max_restarts", Kind.UNUSED)),
        ({"trainer": TWO, "actor": {"optimizer_offload": True}}, ("actor.optimizer_offload", Kind.NOT_SUPPORTED)),
        ({"trainer": TWO, "actor": {"device": "cuda:1"}}, ("actor.device", Kind.CONFLICT)),
        ({"trainer": TWO, "actor": {"fsdp_size": 4}}, ("actor.fsdp_size", Kind.CONFLICT)),
        ({"trainer": {"n_gpus_per_node": 3}, "critic": {"fsdp_size": 2}}, ("critic.fsdp_size", Kind.CONFLICT)),
        (
            {"trainer": {"nnodes": 2}, "rollout": {"engine": "sglang", "sglang": {"colocate": True}}},
            ("rollout.sglang.colocate", Kind.NOT_SUPPORTED),
        ),
        ({"trainer": {**TWO, "python_objects": ["tools"]}}, ("trainer.n_gpus_per_node", Kind.NOT_SUPPORTED)),
    ],
)
def test_options_that_need_one_device_are_refused(sections, problem):
    assert keys_and_kinds(problems_of(**sections)) == {problem}


SIZE = "ulysses_sequence_parallel_size"


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"actor": {SIZE: 2}}, (f"actor.{SIZE}", Kind.CONFLICT)),
        ({"trainer": TWO, "actor": {SIZE: 3}}, (f"actor.{SIZE}", Kind.CONFLICT)),
        ({"trainer": TWO, "ref": {SIZE: 4}}, (f"ref.{SIZE}", Kind.CONFLICT)),
        ({"trainer": TWO, "actor": {SIZE: 2, "share_prefixes": False}}, ("actor.share_prefixes", Kind.CONFLICT)),
    ],
)
def test_positions_that_cannot_be_divided_are_refused(sections, problem):
    assert problem in keys_and_kinds(problems_of(**sections))


def test_positions_are_divided_among_processes():
    assert problems_of(trainer=TWO, actor={SIZE: 2}) == []


def test_adapters_on_servers_and_muon_are_accepted():
    engine = {"rollout": {"n": 2, "engine": "sglang"}, "model": {"path": "m", "lora_rank": 4}}
    assert problems_of(trainer=TWO, actor={"optim": {"name": "muon"}}, **engine) == []


@pytest.mark.parametrize("size", [None, 1, 2, 4])
def test_copies_of_the_weights_on_equal_numbers_of_processes_are_accepted(size):
    assert problems_of(trainer={"n_gpus_per_node": 4}, actor={"fsdp_size": size}) == []


def test_restarts_are_for_several_devices():
    assert problems_of(trainer={**TWO, "max_restarts": 3}) == []
