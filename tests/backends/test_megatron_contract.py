"""The contract of backends for models in a parallel layout."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from backend_contract import *  # noqa: F403  # the suite every backend runs
from backend_contract import SFT, MakeBackend
from megatron_models import make_request
from tiny_models import make_samples, save_model

from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.errors import ConfigError

pytestmark = [pytest.mark.megatron, pytest.mark.one_in(6)]

test_step_ended_by_an_error_leaves_no_state = None  # an error on one rank ends the run
test_work_is_done_off_the_event_loop_one_call_at_a_time = None  # its loss is a local class, which cannot be sent


@pytest.fixture(
    params=["qwen3 tp2", "llama pp2", "qwen3_moe ep2", "deepseek_v3 dp", "qwen3_moe tp2 frozen", "llama dp muon"]
)
def make_backend(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeBackend]:
    family, layout, kind, *_ = [*request.param.split(), "", ""]
    frozen = {"freeze_modules": ["model.embed_tokens", "*.layers.0.*"]} if kind == "frozen" else {}
    path: Path = save_model(tmp_path_factory.mktemp("model"), family)
    made: list[MegatronBackend] = []

    def make(trainable: bool = True, value_head: bool = False, **actor: object) -> MegatronBackend:
        optim = {"name": kind if kind == "muon" else "adamw", "lr": 1e-2}
        common = {"optim": optim | {"lr_warmup_steps": 2, "lr_scheduler_type": "cosine"}, **frozen}
        common |= {"share_prefixes": "pp" not in layout, "ppo_micro_batch_size_per_gpu": None}
        asked = make_request(path, layout, **{**common, **actor})
        made.append(MegatronBackend(ranks, replace(asked, trainable=trainable, value_head=value_head), seed=0))
        return made[-1]

    yield make
    for backend in made:
        asyncio.run(backend.close())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_that_a_process_cannot_write_ends_the_save_on_all(make_backend: MakeBackend, tmp_path: Path, rank: int):
    backend = make_backend()
    asyncio.run(backend.train_step(make_samples(4), SFT))
    asyncio.run(backend.save(tmp_path / "before"))
    parts = sorted(
        file.relative_to(tmp_path / "before") for file in (tmp_path / "before/trainer_state/parts").iterdir()
    )
    blocked = [Path("model.safetensors"), parts[-1]][rank]
    (tmp_path / "later" / blocked / "folder").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot write .*later"):
        asyncio.run(backend.begin_save(tmp_path / "later")).result(60)
    asyncio.run(backend.train_step(make_samples(4), SFT))  # the processes go on
    (tmp_path / "again").mkdir()
    asyncio.run(backend.begin_save(tmp_path / "again")).result(60)
    asyncio.run(backend.load(tmp_path / "again"))
