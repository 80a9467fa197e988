import asyncio

import pytest
from engine_models import tiny_model

from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.loader import load_sglang_engine
from agentrl.engines.sglang.server import free_port


def test_an_address_where_nobody_answers_is_told_with_its_key(tmp_path):
    tiny_model("qwen3").save_pretrained(tmp_path / "model")
    url = f"http://127.0.0.1:{free_port()}"
    rollout = RolloutConfig(engine="sglang", sglang={"urls": url})
    with pytest.raises(ServerError, match=f"^rollout.sglang.urls: no server answers at {url}"):
        asyncio.run(load_sglang_engine(ModelConfig(path=str(tmp_path / "model")), rollout, 64, tmp_path))
