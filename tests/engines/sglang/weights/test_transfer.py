"""Guarantees of every transfer method: order, checks, which server failed, and which state is kept."""

from __future__ import annotations

import asyncio
import base64
import pickle
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from agentrl.config.rollout import SglangConfig
from agentrl.engines.sglang.client import RefusedError, ServerError
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.weights.buckets import ReusedMemory
from agentrl.engines.sglang.weights.choice import choose_transfer
from agentrl.engines.sglang.weights.disk import DiskTransfer
from agentrl.engines.sglang.weights.nccl import GroupTransfer
from agentrl.engines.sglang.weights.tensor import TensorTransfer
from agentrl.engines.sglang.weights.transfer import UpdateFailedError
from agentrl.errors import ConfigError

SHAPES = {"layers.0.a.weight": (2, 3), "layers.1.a.weight": (2, 3)}


class Server:
    """Records requests, and refuses the first `refused` of them."""

    def __init__(self, refused: str = "", times: int = 10) -> None:
        self.url = "http://127.0.0.1:1"
        self.asked: list[tuple[str, dict[str, object]]] = []
        self._refused, self._times = refused, times

    async def post(self, path, body=None, timeout_s=60.0):
        self.asked.append((path.partition("?")[0].strip("/"), body or {}))
        if self._refused and self._refused in path and self._times:
            self._times -= 1
            raise RefusedError(f"{path}: no")
        return {}

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


def replica(server: Server) -> Replica:
    return Replica(server, SimpleNamespace(device="cpu", tp_size=2, dtype="float32"))


def weights(value: float = 1.0) -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.full(shape, value)) for name, shape in SHAPES.items()]


def tensor_transfer() -> TensorTransfer:
    return TensorTransfer(SHAPES, torch.float32, 10)


UPDATE = ["begin_weight_update", *["update_weights_from_tensor"] * 2, "end_weight_update", "flush_cache"]


def test_version_is_set_with_the_last_bucket_and_the_cache_is_flushed_at_the_end():
    server = Server()
    one = replica(server)
    asyncio.run(tensor_transfer().send([one], weights(), 7))
    assert server.paths == UPDATE
    assert [body["weight_version"] for _, body in server.asked[1:3]] == [None, "7"]
    assert all(body["flush_cache"] is False for _, body in server.asked[1:3])
    assert one.version == 7


def test_each_rank_receives_data_that_its_server_can_unpickle():
    server = Server()
    asyncio.run(tensor_transfer().send([replica(server)], weights(2.5), 1))
    entries = server.asked[1][1]["serialized_named_tensors"]
    assert len(entries) == 2
    payload = pickle.loads(base64.b64decode(entries[1]))
    (meta,) = payload["metadata"]
    assert (meta.name, meta.shape, meta.dtype) == ("layers.0.a.weight", (2, 3), torch.float32)
    data = payload["flattened_tensor"][meta.start_idx : meta.end_idx].view(meta.dtype)
    assert data.tolist() == [2.5] * 6


def test_cache_is_kept_on_request():
    server = Server()
    asyncio.run(tensor_transfer().send([replica(server)], weights(), 1, keep_cache=True))
    assert server.paths == UPDATE[:-1]


def test_wrong_weights_reach_no_server():
    server = Server()
    with pytest.raises(ValueError, match=r"no weight 'layers.2.a.weight'"):
        asyncio.run(tensor_transfer().send([replica(server)], [*weights(), ("layers.2.a.weight", torch.ones(1))], 1))
    assert server.asked == []


def test_the_cache_is_dropped_as_soon_as_nothing_runs():
    server = Server(refused="flush", times=2)
    asyncio.run(tensor_transfer().send([replica(server)], weights(), 1))
    assert server.paths == [*UPDATE, "flush_cache", "flush_cache"]


@pytest.mark.parametrize("path", ["update_weights", "end_weight", "flush"])
def test_refusing_server_is_named_and_other_servers_get_the_weights(path, monkeypatch):
    monkeypatch.setattr("agentrl.engines.sglang.weights.transfer.FLUSH_WITHIN_S", 0.0)
    good, bad = replica(Server()), replica(Server(refused=path))
    with pytest.raises(UpdateFailedError, match="no") as caught:
        asyncio.run(tensor_transfer().send([bad, good], weights(), 3))
    assert caught.value.replicas == (bad,)
    assert (good.version, bad.version) == (3, 0)
    assert good.client.paths == UPDATE
    assert "end_weight_update" in bad.client.paths


def test_update_left_open_by_a_killed_trainer_is_ended():
    server = Server(refused="begin", times=1)
    asyncio.run(tensor_transfer().send([replica(server)], weights(), 1))
    assert server.paths == ["begin_weight_update", "end_weight_update", *UPDATE]


def test_a_restarted_replica_gets_the_latest_weights():
    async def run():
        transfer, first, back = tensor_transfer(), Server(), Server()
        await transfer.refresh(replica(back))
        assert back.asked == []
        live = weights()
        await transfer.send([replica(first)], live, 4)
        live[0][1].zero_()  # the policy was updated meanwhile
        restarted = replica(back)
        await transfer.refresh(restarted)
        assert back.asked == first.asked
        assert restarted.version == 4

    asyncio.run(run())


def test_a_restarted_replica_gets_no_partly_overwritten_weights():
    async def run():
        transfer, restarted = TensorTransfer(SHAPES, torch.float32, 10, ReusedMemory()), replica(Server())
        await transfer.send([replica(Server())], weights(), 1)
        for _ in range(2):
            with pytest.raises(ValueError, match="twice"):
                await transfer.send([restarted], weights(2.0) * 2, 2)
        with pytest.raises(UpdateFailedError) as caught:
            await transfer.refresh(restarted)
        assert caught.value.replicas == (restarted,)
        assert restarted.client.asked == []
        await transfer.send([replica(Server())], weights(2.0), 2)
        await transfer.refresh(restarted)
        assert restarted.version == 2

    asyncio.run(run())


def test_weight_files_are_written_atomically_and_old_ones_deleted(tmp_path):
    async def run():
        server = Server()
        transfer = DiskTransfer(SHAPES, torch.bfloat16, 10, tmp_path)
        await transfer.send([replica(server)], weights(), 1)
        await transfer.send([replica(server)], weights(2.0), 2)
        (folder,) = tmp_path.iterdir()
        with pytest.raises(ValueError, match="twice"):
            await transfer.send([replica(server)], weights() * 2, 3)
        assert list(tmp_path.iterdir()) == [folder]
        assert server.asked[2][1]["model_path"] == str(folder)
        assert server.asked[2][1]["weight_version"] == "2"
        read = {name: tensor for file in folder.iterdir() for name, tensor in load_file(file).items()}
        assert {name: (tensor.dtype, tensor.unique().tolist()) for name, tensor in read.items()} == {
            name: (torch.bfloat16, [2.0]) for name in SHAPES
        }
        await transfer.refresh(replica(server))
        assert server.asked[-2][1]["model_path"] == str(folder)
        await transfer.close()
        assert not folder.exists()

    asyncio.run(run())


def test_weight_files_of_a_killed_run_are_deleted_with_the_first_new_ones(tmp_path):
    (tmp_path / "version-57").mkdir()
    transfer = DiskTransfer(SHAPES, torch.float32, 1 << 20, tmp_path)
    asyncio.run(transfer.send([replica(Server())], weights(), 1))
    assert [path.name for path in tmp_path.iterdir()] == ["version-1"]


def test_unwritable_weights_are_an_error_and_reach_no_server(tmp_path):
    (tmp_path / "file").touch()
    server = Server()
    transfer = DiskTransfer(SHAPES, torch.float32, 1 << 20, tmp_path / "file")
    with pytest.raises(ServerError, match=r"weight_transfer=disk: cannot write to .*writing"):
        asyncio.run(transfer.send([replica(server)], weights(), 1))
    assert server.asked == []


def test_server_that_refuses_a_transfer_group_is_named_immediately():
    async def run():
        transfer, bad = GroupTransfer(SHAPES, None, 10), replica(Server(refused="init_weights"))
        async with asyncio.timeout(5):
            with pytest.raises(UpdateFailedError) as caught:
                await transfer.send([bad], weights(), 1)
        assert caught.value.replicas == (bad,)
        await transfer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("named", "device", "kind"),
    [
        ("auto", "cpu", TensorTransfer),
        ("auto", "cuda", GroupTransfer),
        ("disk", "cuda", DiskTransfer),
        ("tensor", "cuda", TensorTransfer),
        ("group", "cpu", GroupTransfer),
    ],
)
def test_weight_transfer_follows_the_configuration(named, device, kind, tmp_path):
    features = SimpleNamespace(device=device, dtype="auto", tp_size=1, pp_size=1, dp_size=1)
    assert type(choose_transfer(SglangConfig(weight_transfer=named), SHAPES, features, tmp_path)) is kind


@pytest.mark.parametrize(("pp_size", "dp_size"), [(2, 1), (1, 2)])
def test_servers_with_pipeline_or_data_parallelism_use_files(pp_size, dp_size, tmp_path):
    features = SimpleNamespace(
        device="cuda", dtype="auto", tp_size=1, pp_size=pp_size, dp_size=dp_size, dp_attention=False
    )
    assert type(choose_transfer(SglangConfig(), SHAPES, features, tmp_path)) is DiskTransfer
    for named in ("tensor", "group"):
        with pytest.raises(ConfigError, match=f"weight_transfer={named}.*choose disk"):
            choose_transfer(SglangConfig(weight_transfer=named), SHAPES, features, tmp_path)
