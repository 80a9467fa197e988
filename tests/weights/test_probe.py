"""The probe: a few sampled tokens show whether engine and backend have the same policy."""

from __future__ import annotations

import asyncio

import pytest
import torch
from engine_models import tiny_model

from agentrl.backends.torch.backend import TorchBackend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.engines.base import Completion, FinishReason
from agentrl.engines.torch.engine import TorchEngine
from agentrl.types.trajectory import VersionSpan
from agentrl.weights.probe import Probe, ProbeError
from agentrl.weights.publish import Publisher


def backend_of(model) -> TorchBackend:
    return TorchBackend(model, None, ModelConfig(path="unused"), ActorConfig(device="cpu"), None)


def scaled(factor: float):
    model = tiny_model("qwen3")
    with torch.no_grad():
        model.lm_head.weight *= factor
    return model


def published(policy, served, *, mixed_up: bool = False) -> dict[str, float]:
    """Metrics of publishing `policy` to an engine that serves `served`."""

    async def run():
        backend, engine = backend_of(policy), TorchEngine(served, max_num_seqs=2)
        own = dict(backend.weights())
        if mixed_up:
            norms = [name for name in own if "q_proj" in name]
            own[norms[0]], own[norms[1]] = own[norms[1]], own[norms[0]]
            own["model.embed_tokens.weight"] = own["model.embed_tokens.weight"].flip(0)
        publisher = Publisher(backend, engine, weights=lambda: own.items(), mode="drain", probe_tokens=8)
        try:
            await publisher.publish(3)
            return publisher.metrics()
        finally:
            await engine.close()
            await backend.close()

    return asyncio.run(run())


def test_the_engine_samples_from_the_published_weights():
    metrics = published(scaled(1.5), tiny_model("qwen3"))
    assert 0 <= metrics["publish/probe_mean_diff"] <= metrics["publish/probe_max_diff"] < 1e-5
    assert metrics["publish/probe_s"] > 0


def test_weights_under_wrong_names_end_the_run():
    with pytest.raises(ProbeError, match=r"after version 3 was published, .* nats per token"):
        published(scaled(1.5), tiny_model("qwen3"), mixed_up=True)


class Claims:
    """An engine with fixed answers."""

    def __init__(self, logprobs, version):
        self._logprobs, self._version, self.released = logprobs, version, []

    async def generate(self, request):
        num = len(self._logprobs)
        return Completion([5] * num, self._logprobs, [VersionSpan(self._version, num)], FinishReason.LENGTH)

    async def release(self, session):
        self.released.append(session)


class Scored:
    """A backend that scores every token -1."""

    async def score(self, samples):
        (sample,) = samples
        return type("Scores", (), {"logprobs": [[-1.0 * trained for trained in sample.loss_mask]]})


def probed(logprobs, version=4):
    engine = Claims(logprobs, version)
    try:
        return asyncio.run(Probe(Scored(), engine, len(logprobs))(4))
    finally:
        assert engine.released == ["probe-4"]


def test_probe_differences_are_measured_on_sampled_tokens():
    assert probed([-1.25, -1.0, -0.5]) == {"publish/probe_max_diff": 0.5, "publish/probe_mean_diff": 0.25}


@pytest.mark.parametrize("logprob", [-2.5, float("nan")])
def test_large_probe_difference_is_an_error(logprob):
    with pytest.raises(ProbeError, match="do not have the same weights"):
        probed([logprob] * 2)


def test_another_version_is_an_error():
    with pytest.raises(ProbeError, match=r"version 4 was published, but the engine samples from \[3\]"):
        probed([-1.0], version=3)
