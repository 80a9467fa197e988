import asyncio

import pytest
from engine_models import tiny_model
from fake_server import FakeServer
from sglang_server import save_tiny_model

from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.sglang.client import RefusedError, ServerError
from agentrl.engines.sglang.health import HealthMonitor
from agentrl.engines.sglang.loader import load_sglang_engine
from agentrl.engines.sglang.weights.delta import LOADER
from agentrl.utils.network import free_port


def test_an_unreachable_address_is_reported_with_its_key(tmp_path):
    tiny_model("qwen3").save_pretrained(tmp_path / "model")
    url = f"http://127.0.0.1:{free_port()}"
    rollout = RolloutConfig(engine="sglang", sglang={"urls": url})
    with pytest.raises(ServerError, match=f"^rollout.sglang.urls: no server answers at {url}"):
        asyncio.run(load_sglang_engine(ModelConfig(path=str(tmp_path / "model")), rollout, 64, tmp_path))


def test_a_running_server_without_the_weight_loader_is_reported_with_the_option(tmp_path):
    save_tiny_model(tmp_path / "tiny")

    async def run():
        server = await FakeServer().start()
        server.loaders = []
        rollout = RolloutConfig(engine="sglang", weight_sync="delta", sglang={"urls": server.url})
        try:
            with pytest.raises(ServerError, match=f"{server.url}.*--custom-weight-loader {LOADER}"):
                await load_sglang_engine(ModelConfig(path=str(tmp_path / "tiny")), rollout, 64, tmp_path)
        finally:
            await server.die()

    asyncio.run(run())


def test_another_program_at_the_routers_address_is_reported_with_its_key():
    class Foreign:
        async def get(self, path, timeout_s):
            raise RefusedError(f"http://r{path}: 404 Not Found")

    async def run():
        monitor = HealthMonitor([], None, lambda _: None, lambda: None, health_timeout_s=0.03, router=Foreign())
        monitor.begin()
        async with asyncio.timeout(5):
            while not monitor.failure:  # noqa: ASYNC110  # what changes has no event of its own
                await asyncio.sleep(0.01)
        await monitor.close()
        return monitor.failure

    expected = "rollout.sglang.router_url: this is not an sglang-router: http://r/health: 404 Not Found"
    assert str(asyncio.run(run())) == expected
