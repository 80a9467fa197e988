"""Weight sync to SGLang servers on GPUs: CUDA IPC and NCCL, also to two tensor-parallel ranks."""

from __future__ import annotations

import asyncio

import pytest
import torch
from engine_models import tiny_model
from sglang_server import START_S, new_server, save_tiny_model

from agentrl.backends.torch.freezing import changing_weights
from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.features import read_features
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.weights.nccl import GroupTransfer
from agentrl.engines.sglang.weights.tensor import TensorTransfer
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.folder import checkpoint_shapes

pytestmark = [pytest.mark.slow, pytest.mark.sglang, pytest.mark.gpu]

CONTEXT = [5, 6, 7, 8, 9, 10]


async def updated(server, transfer, model) -> tuple[list[int], list[float], str]:
    """The server's samples after it received `model`'s weights."""
    client = ServerClient(server.url)
    server.start()
    try:
        await server.ready(START_S)
        replica = Replica(client, await read_features(client))
        await transfer.send([replica], checkpoint_weights(model, changing_weights(model)), 1)
        body = {"input_ids": CONTEXT, "sampling_params": {"max_new_tokens": 6}, "return_logprob": True}
        answer = await client.generate(body)
        meta = answer["meta_info"]
        return answer["output_ids"], [entry[0] for entry in meta["output_token_logprobs"]], meta["weight_version"]
    finally:
        await transfer.close()
        await client.close()
        await server.stop()


@pytest.mark.parametrize("kind", [TensorTransfer, GroupTransfer])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_server_samples_from_the_new_weights(kind, num_ranks, tmp_path):
    if torch.cuda.device_count() < num_ranks + (kind is GroupTransfer):
        pytest.skip("NCCL takes a GPU for this process and one for each rank")
    folder = save_tiny_model(tmp_path / "model", head_dim=16)
    model = tiny_model("qwen3", head_dim=16)
    with torch.no_grad():
        model.lm_head.weight *= 1.5
    sglang = {"server_args": {"tp_size": num_ranks, "base_gpu_id": int(kind is GroupTransfer)}}
    server = new_server(folder, tmp_path / "server.log", dtype="bfloat16", sglang=sglang)
    transfer = kind(checkpoint_shapes(folder, "model.path"), torch.bfloat16, 20_000)
    token_ids, logprobs, version = asyncio.run(updated(server, transfer, model.cuda()))
    ids = torch.tensor([*CONTEXT, *token_ids])
    with torch.no_grad():
        expected = model.cpu()(ids[None]).logits[0, len(CONTEXT) - 1 : -1].log_softmax(-1)
    scored = expected.gather(1, ids[len(CONTEXT) :, None])[:, 0]
    assert version == "1"
    assert (scored - torch.tensor(logprobs)).abs().max() < 0.5  # bfloat16 against float32
