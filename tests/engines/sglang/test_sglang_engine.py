"""The engine on fake servers: the contract, sticky conversations, deadlines, pauses, servers that die or hang."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from engine_contract import CONTRACT, Subject, check_contract
from sglang_subjects import WEIGHTS, ask, fake_engine, fake_servers, open_fake_engine

from agentrl.engines.base import FinishReason
from agentrl.engines.sglang import in_flight as flights
from agentrl.engines.sglang.client import RefusedError, ServerClient, ServerError, UnreachableError
from agentrl.engines.sglang.replica import Health
from agentrl.engines.sglang.weights.transfer import UpdateFailedError
from agentrl.types.trajectory import VersionSpan

LONG = {"max_new_tokens": 200}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract_on_a_fake_server(check):
    check_contract(check, Subject(fake_engine, lambda: WEIGHTS, stop_token_id=96, counts_steps=False))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract_on_two_fake_servers(check):
    check_contract(check, Subject(lambda: fake_engine(2), lambda: WEIGHTS, stop_token_id=96, counts_steps=False))


def test_conversation_stays_on_the_server_with_its_kv():
    async def run():
        async with open_fake_engine(3) as engine:
            for turn in range(3):
                order = [i * (turn + 1) % 7 - 1 for i in range(1, 7)]  # a different order in each turn
                await asyncio.gather(*[engine.generate(ask([3 + i] * (4 + turn), f"s{i}")) for i in order])
            asked = [sorted({body["input_ids"][0] for body in server.requests}) for server in engine.servers]
            return asked, engine.metrics()

    asked, metrics = asyncio.run(run())
    assert sorted(itertools.chain(*asked)) == [3, 4, 5, 6, 7, 8]  # no conversation used two servers
    assert [len(each) for each in asked] == [2, 2, 2]
    assert metrics["later_prompt_tokens"] == 6 * (5 + 6)
    assert metrics["later_cached_tokens"] == 6 * (4 + 5)
    assert metrics["later_cached_share"] == 9 / 11
    assert metrics["forwarded_tokens"] == metrics["prompt_tokens"] - metrics["cached_tokens"] + 18 * 8


def test_an_abort_keeps_the_tokens_so_far():
    async def run():
        async with open_fake_engine() as engine:
            engine.servers[0].holds_at = 3
            work = asyncio.create_task(engine.generate(ask(session="a", **LONG)))
            await engine.servers[0].sampled(3)
            await engine.abort("a")
            return await work, await engine.generate(ask(deadline_s=0.3, **LONG))

    for completion in asyncio.run(run()):
        assert completion.finish_reason is FinishReason.ABORT
        assert len(completion.token_ids) == 3


def test_abort_that_arrives_before_its_request_is_repeated():
    async def run():
        async with open_fake_engine() as engine:
            engine.servers[0].num_aborts_lost = 2
            completion = await engine.generate(ask(deadline_s=0.01, **LONG))
            return completion, engine.servers[0].calls.count("/abort_request")

    completion, num_aborts = asyncio.run(run())
    assert completion.finish_reason is FinishReason.ABORT
    assert num_aborts > 2


def test_cancelling_aborts_on_the_server():
    async def run():
        async with open_fake_engine() as engine:
            work = asyncio.create_task(engine.generate(ask(**LONG)))
            await engine.servers[0].sampled()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await engine.pause("drain")
            return engine.servers[0].calls, engine.metrics()

    calls, metrics = asyncio.run(run())
    assert "/abort_request" in calls
    assert metrics["running_requests"] == metrics["waiting_requests"] == metrics["sampled_tokens"] == 0


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_requests_during_a_pause_wait_in_the_client(mode):
    async def run():
        async with open_fake_engine() as engine:
            await engine.pause(mode)
            held = asyncio.create_task(engine.generate(ask()))
            await asyncio.sleep(0.02)
            sent, waiting = len(engine.servers[0].requests), engine.metrics()["waiting_requests"]
            late = await engine.generate(ask(deadline_s=0.01))
            await engine.resume()
            return sent, waiting, late, await held

    sent, waiting, late, held = asyncio.run(run())
    assert (sent, waiting, late.finish_reason) == (0, 1, FinishReason.ABORT)
    assert len(held.token_ids) == 8


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_weights_may_change_during_a_turn(mode):
    async def run():
        async with open_fake_engine() as engine:
            engine.servers[0].holds_at = 20
            work = asyncio.create_task(engine.generate(ask(max_new_tokens=40)))
            await engine.servers[0].sampled(20)
            await engine.pause(mode)
            await engine.load_weights(iter(WEIGHTS), 7)
            engine.servers[0].holds_at = None
            await engine.resume()
            return await work, engine.servers[0].calls

    completion, calls = asyncio.run(run())
    assert list(completion.policy_versions) == [VersionSpan(0, 20), VersionSpan(7, 20)]
    assert ("/flush_cache" in calls) == (mode == "retract")


def test_weights_are_never_replaced_under_a_running_request():
    async def run():
        async with open_fake_engine(token_s=0.002) as engine:
            work = asyncio.create_task(engine.generate(ask(max_new_tokens=40)))
            await engine.servers[0].sampled()
            await engine.load_weights(iter(WEIGHTS), 7)
            await work
            return engine.servers[0].calls

    calls = asyncio.run(run())
    at = {path: calls.index(path) for path in calls}
    assert at["/pause_generation"] < at["/begin_weight_update"] < at["/end_weight_update"] < at["/continue_generation"]


def _kill(server):
    return server.die()


async def _hang(server):
    server.hung = True


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("break_it", [_kill, _hang])
@pytest.mark.parametrize("num_replicas", [1, 3])
def test_lost_server_loses_no_rollout(break_it, num_replicas):
    async def run():
        async with open_fake_engine(num_replicas, processes=True, token_s=0.001) as engine:
            await engine.load_weights(iter(WEIGHTS), 4)
            work = [asyncio.create_task(engine.generate(ask([3, 4 + i], f"s{i}", **LONG))) for i in range(20)]
            await engine.servers[0].sampled()
            await break_it(engine.servers[0])
            completions = await asyncio.gather(*work)
            while engine.metrics()["replicas_ready"] < num_replicas:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return completions, engine.metrics(), engine.servers[0].version

    completions, metrics, version = asyncio.run(run())
    assert {tuple(each.policy_versions) for each in completions} == {(VersionSpan(4, 200),)}
    assert metrics["sampled_tokens"] == 20 * 200  # a request that was sent twice is counted once
    assert (metrics["num_restarts"], metrics["replicas_ready"]) == (1, num_replicas)
    assert 0 < metrics["num_retried"] <= 20
    assert version == "4"  # the restarted server has the latest weights


@pytest.mark.slow
def test_requests_hanging_at_an_external_server_move_to_another():
    async def run():
        async with open_fake_engine(2) as engine:
            work = [asyncio.create_task(engine.generate(ask([3, 4 + i], f"s{i}", **LONG))) for i in range(6)]
            await engine.servers[0].sampled()
            engine.servers[0].hung = True
            return await asyncio.gather(*work), engine.metrics()["replicas_ready"]

    completions, num_ready = asyncio.run(run())
    assert [len(completion.token_ids) for completion in completions] == [200] * 6
    assert num_ready == 1


def test_a_server_that_cannot_be_started_ends_the_run():
    async def run():
        async with open_fake_engine(processes=True, max_restarts=2) as engine:
            engine.replicas[0].process.starts = False
            work = [asyncio.create_task(engine.generate(ask(**LONG))) for _ in range(3)]
            await engine.servers[0].sampled()
            await engine.servers[0].die()
            errors = await asyncio.gather(*work, return_exceptions=True)
            with pytest.raises(ServerError, match="max_restarts"):
                await engine.load_weights(iter(WEIGHTS), 1)
            return errors

    for error in asyncio.run(run()):
        assert isinstance(error, ServerError)
        for part in ("http://127.0.0.1:", "replica-0.log", "restarted 2 times", "ended while it started"):
            assert part in str(error)


def test_an_external_server_rejoins_when_it_answers():
    async def run():
        async with open_fake_engine() as engine:
            await engine.load_weights(iter(WEIGHTS), 2)
            server = engine.servers[0]
            work = asyncio.create_task(engine.generate(ask(**LONG)))
            await server.sampled()
            await server.die()
            while engine.replicas[0].health is not Health.OUT:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await server.start()
            return await work, engine.metrics()["num_restarts"]

    completion, num_restarts = asyncio.run(run())
    assert list(completion.policy_versions) == [VersionSpan(2, 200)]
    assert num_restarts == 0


def test_replica_with_a_failed_update_is_restarted():
    async def run():
        async with open_fake_engine(2, processes=True) as engine:
            engine.servers[1].refuse = {"/update_weights_from_tensor"}
            await engine.load_weights(iter(WEIGHTS), 5)
            out = [replica.health for replica in engine.replicas]
            completions = await asyncio.gather(*[engine.generate(ask(session=f"{i}")) for i in range(4)])
            return out, completions

    out, completions = asyncio.run(run())
    assert out[0] is Health.READY
    assert out[1] is not Health.READY
    assert {completion.policy_versions[0].version for completion in completions} == {5}


def test_only_replica_that_dies_in_an_update_restarts_with_the_new_weights():
    async def run():
        async with open_fake_engine(processes=True) as engine:
            engine.servers[0].refuse = {"/begin_weight_update"}
            await engine.load_weights(iter(WEIGHTS), 5)
            return await engine.generate(ask()), engine.metrics()["num_restarts"]

    completion, num_restarts = asyncio.run(run())
    assert (completion.policy_versions[0].version, num_restarts) == (5, 1)


def test_suspect_replica_gets_weight_updates():
    """Otherwise, a server that recovers a moment later would serve old weights, or stay paused forever."""

    async def run():
        async with open_fake_engine(2, health_timeout_s=30) as engine:
            suspect, server = engine.replicas[1], engine.servers[1]
            suspect.health = Health.SUSPECT
            await engine.load_weights(iter(WEIGHTS), 7)
            updated = server.version, server.calls.count("/pause_generation")
            suspect.health = Health.READY
            await engine.pause("retract")
            suspect.health = Health.SUSPECT
            await engine.resume()
            return updated, server.paused

    assert asyncio.run(run()) == (("7", 1), False)


def test_server_that_fails_to_pause_is_taken_out_of_service():
    async def run():
        async with open_fake_engine(2, processes=True, health_timeout_s=0.6) as engine:
            engine.servers[1].failing["/pause_generation"] = 1
            await engine.load_weights(iter(WEIGHTS), 5)
            out = engine.replicas[1].health
            while engine.replicas[1].health is not Health.READY:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return out, engine.servers[1].version, engine.replicas[1].num_restarts

    out, version, num_restarts = asyncio.run(run())
    assert out is not Health.READY
    assert (version, num_restarts) == ("5", 1)


def test_server_errors_are_not_refusals(monkeypatch):
    monkeypatch.setattr("agentrl.engines.sglang.engine.MAX_PAUSE_S", 0.01)

    async def run():
        async with open_fake_engine() as engine:
            engine.servers[0].failing["/generate"] = 5
            completion, metrics = await engine.generate(ask()), engine.metrics()
            engine.servers[0].failing["/generate"] = 100
            with pytest.raises(UnreachableError, match=r"after 16 tries: .*/generate: 500 out of memory"):
                await engine.generate(ask())
            return completion, metrics

    completion, metrics = asyncio.run(run())
    assert len(completion.token_ids) == metrics["sampled_tokens"] == 8
    assert metrics["num_retried"] == 5


@pytest.mark.slow
def test_deadline_applies_during_retry_waits():
    async def run():
        async with open_fake_engine() as engine:
            engine.servers[0].failing["/generate"] = 100
            completion = await engine.generate(ask(deadline_s=0.7))
            return completion.finish_reason, engine.servers[0].calls.count("/generate")

    reason, num_tries = asyncio.run(run())
    assert reason is FinishReason.ABORT
    assert 1 <= num_tries < 16  # the last try would be an error


@pytest.mark.slow
def test_a_router_that_hangs_ends_the_run():
    async def run():
        (router,) = await fake_servers(1)
        async with open_fake_engine(router=ServerClient(router.url)) as engine:
            work = asyncio.create_task(engine.generate(ask(**LONG)))
            await asyncio.sleep(0.02)
            router.hung = True
            with pytest.raises(ServerError, match=f"router_url.*{router.url}"):
                await work
            await router.die()

    asyncio.run(run())


def test_an_update_refused_by_every_server_is_an_error():
    async def run():
        async with open_fake_engine() as engine:
            engine.servers[0].refuse = {"/begin_weight_update", "/end_weight_update"}
            with pytest.raises(UpdateFailedError, match="refused"):
                await engine.load_weights(iter(WEIGHTS), 5)
            return engine.replicas[0].health

    assert asyncio.run(run()) is Health.OUT


def test_close_does_not_wait_for_a_server_that_hangs(monkeypatch):
    monkeypatch.setattr(flights, "ABORT_GRACE_S", 0.3)

    async def run():
        engine = await fake_engine(2)
        work = [asyncio.create_task(engine.generate(ask(session=f"{i}", **LONG))) for i in range(4)]
        await engine.servers[0].sampled()
        engine.servers[0].hung = True
        async with asyncio.timeout(30):  # without a limit of its own, it would wait for the server
            await engine.close()
        return await asyncio.gather(*work)

    completions = asyncio.run(run())
    assert {completion.finish_reason for completion in completions} == {FinishReason.ABORT}


def test_a_request_that_a_server_refuses_is_an_error():
    async def run():
        async with open_fake_engine() as engine:
            engine.servers[0].refuse = {"/generate"}
            with pytest.raises(ServerError, match="cannot be read"):
                await engine.generate(ask())
            engine.terms = type(engine.terms)(97, 256, 300)
            engine.servers[0].refuse = set()
            with pytest.raises(RefusedError, match="Input length"):
                await engine.generate(ask([3] * 251))

    asyncio.run(run())


def test_nearly_full_context_gets_an_empty_answer():
    async def run():
        async with open_fake_engine() as engine:
            return await engine.generate(ask([3] * 250)), engine.servers[0].requests

    completion, requests = asyncio.run(run())
    assert (list(completion.token_ids), completion.finish_reason) == ([], FinishReason.LENGTH)
    assert requests == []
