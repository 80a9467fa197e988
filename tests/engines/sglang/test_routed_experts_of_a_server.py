"""Routing replay with a real bfloat16 server: replaying its experts brings the log-probabilities closer."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sglang_server import START_S, VOCABULARY, new_server, save_tiny_model
from test_real_transfer import difference, disk, group, policy, replica_at, sample, tensor, weights_of
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.agent_loops.recording import model_segment
from agentrl.algos.credit import samples_of
from agentrl.backends.torch.backend import load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.requests import Terms, read_completion
from agentrl.models.folder import checkpoint_shapes
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory

pytestmark = [pytest.mark.slow, pytest.mark.sglang]

LAYERS, TOP_K = 4, 4
TERMS = Terms(VOCABULARY, 256, 250, routed_experts=(LAYERS, TOP_K))
NUM_CONVERSATIONS, NUM_SAMPLED = 24, 40


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Path:
    """32 experts in each of 4 layers, with gates so similar that rounding changes the selection."""
    sizes = {"hidden_size": 64, "moe_intermediate_size": 48, "num_hidden_layers": LAYERS, "initializer_range": 0.15}
    experts = {"num_experts": 32, "num_experts_per_tok": TOP_K, "norm_topk_prob": True}
    return save_tiny_model(tmp_path_factory.mktemp("mixture"), "qwen3_moe", **sizes, **experts)


async def say(client: ServerClient, trajectory: Trajectory, rid: str) -> None:
    sampling = SamplingParams(max_new_tokens=NUM_SAMPLED)
    request = GenerateRequest(list(trajectory.token_ids), sampling)
    completion = read_completion(await client.generate(TERMS.body(request, rid)), request, TERMS.routed_experts)
    trajectory.append(model_segment(completion, sampling))
    trajectory.keep_routed_experts(completion.routed_experts)


async def converse(client: ServerClient, number: int) -> Trajectory:
    """Two turns with a tool's answer between them."""
    draw = random.Random(number)
    prompt = [7, 9, *(draw.randrange(2, 90) for _ in range(8))]
    trajectory = Trajectory([Segment(Author.PROMPT, prompt)])
    await say(client, trajectory, f"{number}a")
    first = trajectory.routed_experts
    trajectory.append(Segment(Author.TOOL, [draw.randrange(2, 90) for _ in range(6)]))
    await say(client, trajectory, f"{number}b")
    experts = trajectory.routed_experts
    assert len(experts) == len(trajectory.token_ids) - 1
    assert torch.equal(experts[: len(first)], first)
    return trajectory


@asynccontextmanager
async def server_of(model: Path, log: Path, dtype: str):
    server = new_server(model, log, routed_experts=True, dtype=dtype)
    server.start()
    try:
        await server.ready(START_S)
        async with replica_at(server.url) as replica:
            yield replica
    finally:
        await server.stop()


async def roll_out(client: ServerClient) -> list[Sample]:
    said = await asyncio.gather(*(converse(client, number) for number in range(NUM_CONVERSATIONS)))
    groups = [Group(Task([], uid=f"{number}"), [Rollout([one], Stop.FINISHED)]) for number, one in enumerate(said)]
    return samples_of(groups)


async def gap(model: Path, samples: list[Sample], *, replay: bool) -> tuple[float, float]:
    """Mean |difference| and k3 (an estimate of the KL, Schulman 2020) of backend and engine at the sampled tokens."""
    config = ModelConfig(path=str(model))
    backend = load_torch_backend(
        config, ActorConfig(), total_updates=1, seed=0, routed_by="rollout" if replay else None
    )
    try:
        scores = (await backend.score(samples)).logprobs
    finally:
        await backend.close()
    differences = torch.tensor(
        [
            policy - behaviour
            for row, sample in zip(scores, samples, strict=True)
            for policy, behaviour, trained in zip(row, sample.behaviour_logprobs, sample.loss_mask, strict=True)
            if trained
        ]
    )
    return float(differences.abs().mean()), float((differences.exp() - 1 - differences).mean())


def own_choice(model, sample: Sample) -> Tensor:
    """The experts that transformers itself selects; [T - 1, LAYERS, TOP_K]."""
    chosen: list[Tensor] = []
    handles = [
        layer.mlp.gate.register_forward_hook(lambda module, inputs, output: chosen.append(output[2]))
        for layer in model.base_model.layers
    ]
    with torch.no_grad():
        model(input_ids=torch.tensor([sample.token_ids[:-1]]), use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack(chosen, dim=1)


def share_alike(model: Path, samples: list[Sample]) -> float:
    """The share of expert sets that equal those of transformers in float32."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    alike = torch.cat(
        [
            (sample.routed_experts.long().sort(-1).values == own_choice(loaded, sample).sort(-1).values).all(-1)
            for sample in samples
        ]
    )
    return float(alike.float().mean())


@pytest.mark.nightly
def test_replay_closes_the_gap_of_a_bfloat16_engine(mixture, tmp_path):
    async def run():
        async with server_of(mixture, tmp_path / "server.log", "bfloat16") as replica:
            return await roll_out(replica.client)

    samples = asyncio.run(run())
    alike = share_alike(mixture, samples)
    without, with_replay = (asyncio.run(gap(mixture, samples, replay=replay)) for replay in (False, True))
    print(f"expert sets alike {alike:.4f}; mean |difference|, k3: {without} without, {with_replay} with replay")
    assert alike < 0.999  # otherwise the test shows nothing
    assert with_replay[0] < 0.9 * without[0]
    assert with_replay[1] < 0.9 * without[1]
    unknown = [replace(sample, routed_experts=None) for sample in samples]
    assert asyncio.run(gap(mixture, unknown, replay=True)) == without


def test_float32_engine_routes_like_transformers_and_accepts_new_weights(mixture, tmp_path):
    """Expert weights reach the server under their checkpoint names, with every transfer method."""

    async def run():
        async with server_of(mixture, tmp_path / "server.log", "float32") as replica:
            samples = await roll_out(replica.client)
            shapes, served = checkpoint_shapes(mixture, "model.path"), AutoModelForCausalLM.from_pretrained(mixture)
            for version, way in enumerate([disk, tensor, group], start=1):
                transfer, model = way(shapes, tmp_path / "weights"), policy(version, served)
                await transfer.send([replica], weights_of(model), version)
                assert difference(await sample(replica.client), model) <= 1e-4
                await transfer.close()
            return samples

    samples = asyncio.run(run())
    assert share_alike(mixture, samples) == 1.0
    assert asyncio.run(gap(mixture, samples, replay=True))[0] < 1e-4
