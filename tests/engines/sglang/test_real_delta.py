"""Weights as differences, on real SGLang servers: bitwise those of a full publication."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import torch
from engine_models import tiny_model
from sglang_server import START_S, new_server, save_tiny_model

from agentrl.backends.torch.freezing import changing_weights
from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.features import read_features
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.servers.server import LocalServer
from agentrl.engines.sglang.weights.delta import DeltaTransfer
from agentrl.engines.sglang.weights.tensor import TensorTransfer
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.folder import checkpoint_shapes

pytestmark = [pytest.mark.slow, pytest.mark.sglang]

SMALL_BUCKETS = 10_000
"""Bytes; the tiny model fills about five buckets."""
SAMPLED = {
    "input_ids": [5, 6, 7, 8, 9, 10],
    "sampling_params": {"temperature": 0.0, "max_new_tokens": 16, "ignore_eos": True},
    "return_logprob": True,
}


@asynccontextmanager
async def replica_of(server: LocalServer):
    """The started server as a replica."""
    await server.ready(START_S)
    client = ServerClient(server.url)
    try:
        yield Replica(client, await read_features(client), server)
    finally:
        await client.close()


def policies() -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Weights of a policy, then of the same policy after updates that change few values; vectors too."""
    model = tiny_model("llama")
    torch.manual_seed(1)
    while True:
        yield list(checkpoint_weights(model, changing_weights(model)))
        with torch.no_grad():
            for value in model.parameters():
                value += (torch.rand(value.shape) < 0.05) * torch.randn(value.shape)


async def values_of(replica: Replica, names: list[str]) -> dict[str, object]:
    """All weights of a server, as it reports them; bfloat16 as float."""
    return {
        name: await replica.client.post_for_list("/get_weights_by_name", {"name": name, "truncate_size": 10**6})
        for name in names
    }


async def answer_of(replica: Replica) -> tuple[object, object]:
    answer = await replica.client.generate(SAMPLED)
    return answer["output_ids"], [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]


@pytest.mark.nightly
def test_weights_are_bitwise_those_of_a_full_publication(tmp_path):
    """The Llama of SGLang reports its weights by name: those of the checkpoint, taken out of its fused ones."""
    model = save_tiny_model(tmp_path / "llama", "llama")
    servers = [
        new_server(model, tmp_path / f"{sync}.log", dtype="bfloat16", weight_sync=sync) for sync in ("delta", "full")
    ]
    shapes, versions = checkpoint_shapes(model, "model.path"), policies()
    names = list(shapes)

    async def run() -> None:
        differences = DeltaTransfer(shapes, torch.bfloat16, SMALL_BUCKETS)
        complete = TensorTransfer(shapes, torch.bfloat16, SMALL_BUCKETS)
        async with AsyncExitStack() as stack:
            for server in servers:
                server.start()
                stack.push_async_callback(server.stop)
            changing, other = [await stack.enter_async_context(replica_of(server)) for server in servers]

            async def equal(version: int) -> bool:
                weights = next(versions)
                await differences.send([changing], weights, version)
                await complete.send([other], weights, version)
                found = await values_of(changing, names)
                assert all(found[name] for name in names)
                assert found["model.norm.weight"] == dict(weights)["model.norm.weight"].bfloat16().tolist()
                assert await answer_of(changing) == await answer_of(other)
                return found == await values_of(other, names)

            sizes = []
            for version in (1, 2, 3):
                assert await equal(version)
                sizes.append(differences.metrics()["weight_sent_bytes"])
            assert sizes[2] - sizes[1] < 0.5 * sizes[0]
            await servers[0].restart(START_S)  # it loses what it held, and nobody tells the transfer
            assert await equal(4)
            assert differences.metrics()["weight_sent_bytes"] - sizes[2] > sizes[0]
            assert await equal(5)
            assert (await read_features(changing.client)).weight_version == "5"

    asyncio.run(run())
