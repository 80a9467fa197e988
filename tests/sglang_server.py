"""One real SGLang server on the CPU, shared by all tests that need one; the first of these tests starts it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

VOCABULARY = 97
START_S = 240.0


def save_tiny_model(folder: Path, family: str = "qwen3", **changes: object) -> Path:
    """Save a model of `engine_models.FAMILIES` as a folder, with a tokenizer whose words are w0 to w96."""
    from engine_models import tiny_model
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tiny_model(family, **changes).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", pad_token="w0", bos_token="w1", eos_token="w96"
    )
    tokenizer.save_pretrained(folder)
    return folder


def require_sglang() -> None:
    """Skips tests that need SGLang if it is not installed; in CI they fail instead."""
    import torch

    needed = ("sglang",) if torch.cuda.is_available() else ("sglang", "sglang_on_cpu")
    if not all(importlib.util.find_spec(name) for name in needed):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("SGLang is not installed: make sglang")


def new_server(model: Path, log: Path, *, api_key: str | None = None, **rollout: object):
    """A server with the settings of a run; the caller starts and stops it."""
    from agentrl.config.model import ModelConfig
    from agentrl.config.rollout import RolloutConfig
    from agentrl.engines.sglang.servers.options import server_options
    from agentrl.engines.sglang.servers.server import LocalServer

    require_sglang()
    config = RolloutConfig(engine="sglang", **rollout)
    options = server_options(ModelConfig(path=str(model)), config, 256)
    return LocalServer({**options, "api_key": api_key}, log, config.sglang.env)  # the tests use many kinds of requests


@pytest.fixture(scope="session")
def sglang_model(tmp_path_factory) -> Path:
    """The folder of the tiny Qwen3 that `sglang_server` serves."""
    return save_tiny_model(tmp_path_factory.mktemp("sglang") / "qwen3")


@contextmanager
def serving(model: Path, log: Path) -> Iterator[object]:
    """A ready server of its own while the context is open."""
    server = new_server(model, log)
    server.start()
    try:
        asyncio.run(server.ready(START_S))
        yield server
    finally:
        asyncio.run(server.stop())


@pytest.fixture(scope="session")
def _session_server(sglang_model, tmp_path_factory) -> Iterator[object]:
    with serving(sglang_model, tmp_path_factory.mktemp("sglang-log") / "server.log") as server:
        yield server


@pytest.fixture
def sglang_server(_session_server, sglang_model):
    """A real server (`.url`, `.log_file`) with the weights of `sglang_model` as version 0, and an empty cache."""
    asyncio.run(_as_new(_session_server, sglang_model))
    return _session_server


async def _as_new(server, model: Path) -> None:
    from agentrl.engines.sglang.client import ServerClient
    from agentrl.engines.sglang.weights.transfer import flush

    if not server.alive:
        await server.restart(START_S)
    client = ServerClient(server.url)
    try:
        await client.post("/continue_generation")
        # with the last request of another test still running, a flush during the update would crash the server
        body = {"model_path": str(model), "weight_version": "0", "flush_cache": False}
        await client.post("/update_weights_from_disk", body)
        await flush(client)
    finally:
        await client.close()
