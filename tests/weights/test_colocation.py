"""One GPU shared by servers and trainer: which of them uses its memory at each moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from agentrl.config import RunConfig
from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.engine import SglangEngine
from agentrl.telemetry.timing import Timer
from agentrl.trainer.learner import StepHooks, named
from agentrl.weights.colocation import SharedGpu, shared_gpu

ON_GPU = SimpleNamespace(device="cuda", memory_saver=True)


class Engine:
    """One server; records its requests."""

    check_memory_saver = SglangEngine.check_memory_saver
    release_memory, resume_memory = SglangEngine.release_memory, SglangEngine.resume_memory

    def __init__(self, features=ON_GPU):
        self.asked = []
        self.replicas = [SimpleNamespace(client=self, features=features)]
        self.url = "http://here:1"

    async def post(self, path, body=None):
        self.asked.append((path.strip("/").partition("_")[0], *body["tags"]))

    async def pause(self, mode):
        self.asked.append(mode)

    async def learn(self, samples, step):
        self.asked.append("learn")
        return {"loss": 1.0}

    async def publish(self, version):
        self.asked.append("publish")


@pytest.mark.parametrize(("all_weights", "tags"), [(True, ("weights", "kv_cache")), (False, ("kv_cache",))])
def test_servers_release_memory_during_training(all_weights, tags):
    engine = Engine()
    gpu = SharedGpu(engine, all_weights=all_weights)

    async def step():
        hooks = StepHooks(
            Timer(),
            before_update=named(gpu_handover=gpu.hand_over),
            update=named(learn=engine.learn),
            before_publish=named(gpu_return=gpu.take_back),
            publish=named(publish=engine.publish),
        )
        await hooks.run_publish(0)
        assert await hooks.run_learn([], 0) == {"loss": 1.0}
        await hooks.run_publish(1)

    asyncio.run(step())
    assert engine.asked == ["publish", "drain", ("release", *tags), "learn", ("resume", *tags), "publish"]


def test_a_cpu_has_no_memory_to_release():
    with pytest.raises(ServerError, match=r"rollout.sglang.colocate: .* cannot release its memory"):
        SharedGpu(Engine(SimpleNamespace(device="cpu", memory_saver=True)), all_weights=True)


@pytest.mark.parametrize(("engine", "colocate"), [("torch", True), ("sglang", False), ("sglang", True)])
def test_gpu_sharing_needs_engine_support_and_the_option(engine, colocate):
    config = RunConfig.model_validate({"model": {"path": "m"}})
    sglang = config.rollout.sglang.model_copy(update={"colocate": colocate})
    rollout = config.rollout.model_copy(update={"engine": engine, "sglang": sglang})
    shared = shared_gpu(config.model_copy(update={"rollout": rollout}), Engine())
    assert (shared is not None) == (engine == "sglang" and colocate)
