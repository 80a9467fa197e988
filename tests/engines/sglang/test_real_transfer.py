"""Weight sync to a real SGLang server: afterwards it samples from the new policy, with every transfer method."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import orjson
import pytest
import torch
from engine_models import tiny_model
from transformers import PreTrainedModel

from agentrl.backends.torch.freezing import changing_weights
from agentrl.engines.base import Completion, GenerateRequest, SamplingParams
from agentrl.engines.sglang.client import Answer, ServerClient
from agentrl.engines.sglang.engine import SglangEngine
from agentrl.engines.sglang.features import read_features
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.requests import Terms
from agentrl.engines.sglang.weights.disk import DiskTransfer
from agentrl.engines.sglang.weights.nccl import GroupTransfer
from agentrl.engines.sglang.weights.tensor import TensorTransfer
from agentrl.engines.sglang.weights.transfer import UpdateFailedError, WeightTransfer
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.folder import checkpoint_shapes

pytestmark = [pytest.mark.slow, pytest.mark.sglang]

CONTEXT = [5, 6, 7, 8, 9, 10]
SMALL_BUCKETS = 20_000
"""Bytes; the tiny model fills about five buckets."""


def disk(shapes, folder):
    return DiskTransfer(shapes, torch.float32, SMALL_BUCKETS, folder)


def tensor(shapes, folder):
    return TensorTransfer(shapes, torch.float32, SMALL_BUCKETS)


def group(shapes, folder):
    return GroupTransfer(shapes, torch.float32, SMALL_BUCKETS)


EVERY_WAY = pytest.mark.parametrize("way", [disk, tensor, group])


def policy(seed: int, model: PreTrainedModel | None = None) -> PreTrainedModel:
    """The served model after some updates."""
    model = model or tiny_model("qwen3")
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value += 0.1 * torch.randn_like(value)
    return model


def weights_of(model):
    return checkpoint_weights(model, changing_weights(model))


def sampling(num_tokens: int) -> dict[str, object]:
    options = {"temperature": 1.0, "max_new_tokens": num_tokens, "ignore_eos": True}
    return {"input_ids": CONTEXT, "sampling_params": options, "return_logprob": True}


async def sample(client: ServerClient) -> Answer:
    return await client.generate(sampling(8))


async def streamed(url: str, num_tokens: int, started: asyncio.Event) -> Answer:
    """The answer of a request; `started` is set at its first token."""
    body = {**sampling(num_tokens), "stream": True}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/generate", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                answer = orjson.loads(line.removeprefix(b"data: "))  # the last line has all tokens
                started.set()
    return answer


def difference(answer: Answer, model, start: int = 0, end: int | None = None) -> float:
    """Largest log-probability difference (nats) to a plain forward of `model`, for the tokens from `start` to `end`."""
    said = torch.tensor([entry[0] for entry in answer["meta_info"]["output_token_logprobs"]])
    ids = torch.tensor([*CONTEXT, *answer["output_ids"]])
    with torch.no_grad():
        logprobs = model(ids[None]).logits[0, len(CONTEXT) - 1 : -1].log_softmax(-1)
    expected = logprobs.gather(1, ids[len(CONTEXT) :, None])[:, 0]
    return float((said - expected)[start:end].abs().max())


def versions(answer: Answer) -> list[str]:
    return [span["version"] for span in answer["meta_info"]["weight_versions"]]


@asynccontextmanager
async def replica_at(url: str, client_class: type[ServerClient] = ServerClient):
    client = client_class(url)
    try:
        yield Replica(client, await read_features(client))
    finally:
        await client.close()


def with_transfer(
    server, folder: Path, way, check: Callable[[WeightTransfer, Replica], Awaitable[None]], client_class=ServerClient
) -> None:
    async def run() -> None:
        async with replica_at(server.url, client_class) as replica:
            shapes = checkpoint_shapes(Path(replica.features.model_path), "model.path")
            transfer = way(shapes, folder)
            try:
                async with asyncio.timeout(60):
                    await check(transfer, replica)
            finally:
                await transfer.close()

    asyncio.run(run())


@EVERY_WAY
def test_server_samples_from_the_new_weights(way, sglang_server, tmp_path):
    async def check(transfer, replica):
        for seed in (1, 2):
            model = policy(seed)
            await transfer.send([replica], weights_of(model), seed)
            answer = await sample(replica.client)
            assert difference(answer, model) <= 1e-5
            assert difference(answer, policy(seed + 1)) > 0.1
            assert versions(answer) == [str(seed)]

    with_transfer(sglang_server, tmp_path, way, check)


@EVERY_WAY
@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_running_request_continues_with_the_new_weights(mode, way, sglang_server, tmp_path):
    old, new = policy(3), policy(4)

    async def updated_meanwhile(transfer, replica):
        await transfer.send([replica], weights_of(old), 3)
        started = [asyncio.Event() for _ in range(8)]  # enough requests that none ends before
        work = [asyncio.create_task(streamed(replica.client.url, 200, event)) for event in started]
        await asyncio.gather(*[event.wait() for event in started])
        await replica.client.post("/pause_generation", {"mode": mode})
        await transfer.send([replica], weights_of(new), 4, keep_cache=mode == "in_place")
        await replica.client.post("/continue_generation")
        return await asyncio.gather(*work)

    async def check(transfer, replica):
        for _ in range(5):  # on a busy machine, the pause can be later than the end of a request
            answers = await updated_meanwhile(transfer, replica)
            if all(versions(answer) != ["3"] for answer in answers):
                break
        for answer in answers:
            assert versions(answer) == ["3", "4"]
            cut = answer["meta_info"]["weight_versions"][0]["end"]
            assert 0 < cut < 200
            # the rounding error of the least likely of 1,600 tokens is 1e-5
            assert difference(answer, old, end=cut) <= 3e-5
            after = difference(answer, new, start=cut)
            assert after <= 3e-5 if mode == "retract" else after > 1e-3  # the KV of the older weights is in use

    with_transfer(sglang_server, tmp_path, way, check)


class Unbegun(ServerClient):
    """Makes the server refuse every update: skips the opening request and names missing files."""

    broken = True

    async def post(self, path, body=None, timeout_s=60.0):
        if self.broken and path == "/begin_weight_update":
            return {}
        if self.broken and path == "/update_weights_from_disk":
            body = {**body, "model_path": "/nowhere"}
        return await super().post(path, body, timeout_s)


@EVERY_WAY
def test_refused_update_is_reported_immediately_and_the_next_one_succeeds(way, sglang_server, tmp_path):
    async def check(transfer, replica):
        async with asyncio.timeout(10):
            with pytest.raises(UpdateFailedError, match=str(sglang_server.url)) as caught:
                await transfer.send([replica], weights_of(policy(5)), 5)
        assert caught.value.replicas == (replica,)
        replica.client.broken = False
        await transfer.refresh(replica)
        answer = await sample(replica.client)
        assert difference(answer, policy(5)) <= 1e-5
        assert versions(answer) == ["5"]

    with_transfer(sglang_server, tmp_path, way, check, Unbegun)


@EVERY_WAY
def test_wrong_weights_leave_the_server_as_it_was(way, sglang_server, tmp_path):
    async def check(transfer, replica):
        before = difference(await sample(replica.client), tiny_model("qwen3"))
        name, value = next(iter(weights_of(policy(6))))
        for wrong in ([(name, value), ("model.nonsense", value)], [(name, value[1:])], [(name, value)] * 2):
            with pytest.raises(ValueError, match="weight"):
                await transfer.send([replica], wrong, 6)
        answer = await sample(replica.client)
        assert max(before, difference(answer, tiny_model("qwen3"))) <= 1e-5
        assert versions(answer) == ["0"]

    with_transfer(sglang_server, tmp_path, way, check)


def test_a_new_conversation_does_not_start_from_kv_of_older_weights(sglang_server, tmp_path):
    """Under in_place the server keeps that KV for running conversations, but not for a new one with the same prefix."""

    async def run():
        async with replica_at(sglang_server.url) as replica:
            transfer = tensor(checkpoint_shapes(Path(replica.features.model_path), "model.path"), tmp_path)
            engine = SglangEngine([replica], transfer, Terms(97, 256, replica.features.max_input_tokens))
            try:
                await engine.generate(request("old"))
                await engine.pause("in_place")
                await engine.load_weights(weights_of(model := policy(8)), 8)
                await engine.resume()
                assert off(await engine.generate(request("new")), model) <= 1e-5
                went_on = await engine.generate(request("old"))
                assert went_on.num_cached_tokens > 0
                assert off(went_on, model) > 1e-3
            finally:
                await engine.close()

    asyncio.run(run())


def request(session: str) -> GenerateRequest:
    return GenerateRequest(CONTEXT, SamplingParams(max_new_tokens=8), session)


def off(completion: Completion, model) -> float:
    entries = [[logprob] for logprob in completion.logprobs]
    return difference({"output_ids": completion.token_ids, "meta_info": {"output_token_logprobs": entries}}, model)
