"""Weights as differences, sent to fake servers that run the real loader."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_server import FakeProcess, FakeServer
from sglang_subjects import TERMS, fake_servers

from agentrl.config.rollout import SglangConfig
from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.engine import SglangEngine
from agentrl.engines.sglang.replica import Health, Replica
from agentrl.engines.sglang.weights import delta
from agentrl.engines.sglang.weights.choice import choose_transfer
from agentrl.engines.sglang.weights.delta import LOADER, DeltaTransfer, check_loader
from agentrl.engines.sglang.weights.transfer import UpdateFailedError
from agentrl.errors import ConfigError

SHAPES = {f"layers.{i}.a.weight": (64, 64) for i in range(4)} | {"norm.weight": (64,)}
BUCKET_BYTES = 64 * 64 * 2
ONE_BUCKET = BUCKET_BYTES * 4 / 3
"""Bytes of the text of one bucket."""


def weights(seed: int, share: float = 0.01) -> dict[str, torch.Tensor]:
    """Weights of which a share changes with every step of `seed`."""
    torch.manual_seed(0)
    values = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    for step in range(1, seed + 1):
        torch.manual_seed(step)
        values = {
            name: torch.where(torch.rand(value.shape) < share, torch.randn(value.shape), value)
            for name, value in values.items()
        }
    return values


@asynccontextmanager
async def served(number: int = 1):
    """A transfer, fake servers and their replicas."""
    servers = await fake_servers(number)
    replicas = [await server.replica() for server in servers]
    transfer = DeltaTransfer(SHAPES, torch.bfloat16, BUCKET_BYTES)
    try:
        async with asyncio.timeout(20):
            yield transfer, servers, replicas
    finally:
        await transfer.close()
        for server, replica in zip(servers, replicas, strict=True):
            await replica.leave()
            await server.die()


def has(server: FakeServer, expected: dict[str, torch.Tensor]) -> bool:
    """Whether the server's model has exactly these weights, in the dtype that is sent."""
    found = server.model.weights
    sent = {name: value.bfloat16() if value.ndim > 1 else value for name, value in expected.items()}
    return found.keys() == sent.keys() and all(
        found[name].dtype == value.dtype and torch.equal(found[name], value) for name, value in sent.items()
    )


async def send(transfer: DeltaTransfer, replicas: list[Replica], version: int, share: float = 0.01) -> float:
    """Send a version; return the bytes of its requests."""
    before = transfer.metrics()["weight_sent_bytes"]
    await transfer.send(replicas, weights(version, share).items(), version)
    return transfer.metrics()["weight_sent_bytes"] - before


def test_after_every_update_the_server_has_the_weights_of_a_full_update():
    async def run():
        async with served(2) as (transfer, servers, replicas):
            sizes = []
            for version in range(4):
                sizes.append(await send(transfer, replicas, version))
                assert all(has(server, weights(version)) for server in servers)
                assert [replica.version for replica in replicas] == [version] * 2
                assert {server.version for server in servers} == {str(version)}
            assert sizes[0] > 2 * 4 * ONE_BUCKET
            assert max(sizes[1:]) < 0.2 * sizes[0]
            metrics = transfer.metrics()
            assert metrics["weight_changed_share"] == pytest.approx(0.01, abs=0.003)
            assert metrics["weight_compare_s"] > 0

    asyncio.run(run())


def test_equal_weights_are_nearly_free_and_are_loaded_again():
    """Another program may have changed the server's model."""

    async def run():
        async with served() as (transfer, servers, replicas):
            await transfer.send(replicas, weights(1).items(), 1)
            servers[0].model.weights.clear()
            before = transfer.metrics()["weight_sent_bytes"]
            await transfer.send(replicas, weights(1).items(), 2)
            assert transfer.metrics()["weight_sent_bytes"] - before < 0.2 * 4 * ONE_BUCKET
            assert has(servers[0], weights(1))
            assert transfer.metrics()["weight_changed_share"] == 0

    asyncio.run(run())


def test_buckets_that_changed_too_much_are_sent_completely():
    async def run():
        async with served() as (transfer, servers, replicas):
            first = await send(transfer, replicas, 0, share=1.0)
            assert await send(transfer, replicas, 1, share=1.0) == pytest.approx(first, rel=0.05)
            assert has(servers[0], weights(1, 1.0))
            assert transfer.metrics()["weight_changed_share"] > 0.9

    asyncio.run(run())


def test_a_server_that_restarted_unnoticed_gets_complete_weights():
    async def run():
        async with served(2) as (transfer, servers, replicas):
            first = await send(transfer, replicas, 1)
            await servers[0].die()
            await servers[0].start()
            assert first / 2 < await send(transfer, replicas, 2) < 0.7 * first  # complete for one of the two
            assert all(has(server, weights(2)) for server in servers)
            assert await send(transfer, replicas, 3) < 0.2 * first
            assert all(has(server, weights(3)) for server in servers)

    asyncio.run(run())


def test_only_the_bucket_with_a_wrong_checksum_is_sent_again():
    async def run():
        async with served() as (transfer, servers, replicas):
            await send(transfer, replicas, 1)
            held = servers[0].model.get_weights_by_name._buckets
            held[2][0][5] ^= 1  # a damaged byte in the server's memory
            assert ONE_BUCKET < await send(transfer, replicas, 2) < 2 * ONE_BUCKET
            assert has(servers[0], weights(2))

    asyncio.run(run())


def test_a_server_that_missed_a_version_gets_what_it_lacks():
    async def run():
        async with served(2) as (transfer, servers, replicas):
            await send(transfer, replicas, 1)
            await send(transfer, replicas[:1], 2)
            await send(transfer, replicas, 3)
            assert all(has(server, weights(3)) for server in servers)

    asyncio.run(run())


def test_a_returning_server_gets_the_last_weights():
    async def run():
        async with served() as (transfer, servers, replicas):
            await send(transfer, replicas, 1)
            await send(transfer, replicas, 2)
            await servers[0].die()
            await servers[0].start()
            await transfer.refresh(replicas[0])
            assert has(servers[0], weights(2))
            assert servers[0].version == "2"

    asyncio.run(run())


def test_refused_weights_do_not_change_what_the_next_difference_starts_from():
    async def run():
        async with served() as (transfer, servers, replicas):
            await send(transfer, replicas, 1)
            with pytest.raises(ValueError, match="no weight 'nonsense'"):
                await transfer.send(replicas, [*weights(2).items(), ("nonsense", torch.ones(1))], 2)
            assert await send(transfer, replicas, 2) < ONE_BUCKET
            assert has(servers[0], weights(2))

    asyncio.run(run())


def test_other_weights_than_before_are_sent_completely():
    """As the base weights are at the start, and then only the trained ones."""

    async def run():
        async with served() as (transfer, servers, replicas):
            await send(transfer, replicas, 0)
            some = dict(list(weights(1).items())[1:3])
            await transfer.send(replicas, some.items(), 1)
            assert has(servers[0], weights(0) | some)
            assert len(servers[0].model.get_weights_by_name._buckets) == 2

    asyncio.run(run())


def test_a_server_that_never_has_the_right_weights_is_reported(monkeypatch):
    monkeypatch.setattr(delta, "checksum", lambda data: 7)

    async def run():
        async with served() as (transfer, servers, replicas):
            with pytest.raises(UpdateFailedError, match="5 of 5 buckets") as caught:
                await send(transfer, replicas, 1)
            assert caught.value.replicas == (replicas[0],)
            assert "/end_weight_update" in servers[0].calls

    asyncio.run(run())


def test_a_server_without_the_option_is_refused_with_the_option():
    async def run():
        async with served() as (transfer, servers, _):
            servers[0].loaders = ["other.loader"]
            replica = await servers[0].replica()
            try:
                with pytest.raises(ServerError, match=f"--custom-weight-loader {LOADER}"):
                    check_loader(replica)
                with pytest.raises(UpdateFailedError, match="--custom-weight-loader"):
                    await send(transfer, [replica], 1)
                assert "/update_weights_from_tensor" not in servers[0].calls
            finally:
                await replica.leave()

    asyncio.run(run())


def test_only_the_first_rank_gets_data():
    class Server:
        url, bodies = "http://s", []

        async def post(self, path, body=None, timeout_s=60.0):
            self.bodies += [body] if path == "/update_weights_from_tensor" else []
            return {}

        async def post_for_list(self, path, body):
            return []

    async def run():
        features = SimpleNamespace(device="cuda", tp_size=4, weight_loaders=(LOADER,))
        transfer = DeltaTransfer(SHAPES, torch.bfloat16, 1 << 20)
        with pytest.raises(UpdateFailedError):
            await transfer.send([Replica(Server(), features)], weights(1).items(), 1)
        lengths = [len(text) for text in Server.bodies[0]["serialized_named_tensors"]]
        assert lengths[0] > 4 * ONE_BUCKET
        assert max(lengths[1:]) < 0.2 * ONE_BUCKET
        assert len(lengths) == 4

    asyncio.run(run())


def test_an_engine_brings_a_crashed_server_back_to_the_last_weights():
    async def run():
        servers = await fake_servers(2)
        replicas = [await server.replica(FakeProcess(server)) for server in servers]
        transfer = DeltaTransfer(SHAPES, torch.bfloat16, BUCKET_BYTES)
        engine = SglangEngine(replicas, transfer, TERMS, health_timeout_s=0.15)
        try:
            async with asyncio.timeout(20):
                for version in (1, 2):
                    await engine.load_weights(weights(version).items(), version)
                await servers[0].die()
                while replicas[0].num_restarts == 0 or replicas[0].health is not Health.READY:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert has(servers[0], weights(2))
                await engine.load_weights(weights(3).items(), 3)
                assert all(has(server, weights(3)) for server in servers)
                assert engine.metrics()["weight_sent_bytes"] > 0
        finally:
            await engine.close()
            for server in servers:
                await server.die()

    asyncio.run(run())


def test_delta_transfer_follows_the_configuration():
    features = SimpleNamespace(device="cpu", dtype="bfloat16", tp_size=1, pp_size=1, dp_size=1)
    transfer = choose_transfer(SglangConfig(), SHAPES, features, Path("none"), delta=True)
    assert isinstance(transfer, DeltaTransfer)


@pytest.mark.parametrize(("pp_size", "dp_size"), [(2, 1), (1, 2)])
def test_pipeline_and_data_parallel_servers_are_refused(pp_size, dp_size):
    features = SimpleNamespace(device="cuda", dtype="auto", tp_size=2, pp_size=pp_size, dp_size=dp_size)
    with pytest.raises(ConfigError, match=r"rollout\.weight_sync=delta"):
        choose_transfer(SglangConfig(), SHAPES, features, Path("none"), delta=True)
