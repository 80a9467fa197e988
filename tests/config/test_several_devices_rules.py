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
        ({"trainer": TWO, "actor": {"optim": {"name": "muon"}}}, ("actor.optim.name", Kind.NOT_SUPPORTED)),
        (
            {"trainer": TWO, "rollout": {"n": 2, "engine": "sglang"}, "model": {"path": "m", "lora_rank": 4}},
            ("trainer.n_gpus_per_node", Kind.NOT_SUPPORTED),
        ),
        ({"trainer": TWO, "actor": {"optimizer_offload": True}}, ("actor.optimizer_offload", Kind.NOT_SUPPORTED)),
        ({"trainer": TWO, "actor": {"device": "cuda:1"}}, ("actor.device", Kind.CONFLICT)),
        ({"trainer": {**TWO, "python_objects": ["tools"]}}, ("trainer.n_gpus_per_node", Kind.NOT_SUPPORTED)),
    ],
)
def test_what_cannot_work_is_refused(sections, problem):
    assert keys_and_kinds(problems_of(**sections)) == {problem}


def test_restarts_are_for_several_devices():
    assert problems_of(trainer={**TWO, "max_restarts": 3}) == []
