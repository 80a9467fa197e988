"""The contract of backends on two ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_contract import *  # noqa: F403  # the suite every backend runs
from backend_contract import MakeBackend
from tiny_models import save_model

from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.backend import FsdpBackend
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig

pytestmark = [pytest.mark.slow, pytest.mark.one_in(3)]

test_step_ended_by_an_error_leaves_no_state = None  # an error on one rank ends the run
test_work_is_done_off_the_event_loop_one_call_at_a_time = None  # its loss is a local class, which cannot be sent


@pytest.fixture(params=["qwen3", "llama-lora", "qwen3_moe-frozen"])
def make_backend(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeBackend]:
    family, part, *_ = [*request.param.split("-"), ""]
    path: Path = save_model(tmp_path_factory.mktemp("model"), family)
    lora = {"lora_rank": 4, "lora_alpha": 32} if part == "lora" else {}
    frozen = {"freeze_modules": ["model.embed_tokens", "*.layers.0.*"]} if part == "frozen" else {}
    made: list[FsdpBackend] = []

    def make(trainable: bool = True, value_head: bool = False, **actor: object) -> FsdpBackend:
        optim = {"lr": 1e-2, "lr_warmup_steps": 2, "lr_scheduler_type": "cosine"}
        config = ActorConfig.model_validate({"optim": optim, "device": "cpu", **frozen, **actor})
        model = ModelConfig.model_validate({"path": str(path), **lora})
        request = ModelRequest(model, config, total_updates=10, trainable=trainable, value_head=value_head)
        made.append(FsdpBackend(ranks, request, seed=0))
        return made[-1]

    yield make
    for backend in made:
        asyncio.run(backend.close())
