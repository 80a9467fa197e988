"""The features that a server reports, and servers that agentrl refuses to use."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.engines.sglang.client import RefusedError, ServerClient, ServerError, UnreachableError
from agentrl.engines.sglang.features import NEEDED_PATHS, Features, check_sizes, read_features
from agentrl.engines.sglang.memory import check_memory_saver, release_memory, resume_memory
from agentrl.errors import ConfigError, Kind

SERVER = {
    "version": "0.5.21.post1",
    "device": "cuda",
    "dtype": "bfloat16",
    "max_req_input_len": 250,
    "max_total_num_tokens": 32768,
    "tp_size": 2,
    "pp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
    "enable_priority_scheduling": True,
    "enable_memory_saver": True,
    "enable_return_routed_experts": False,
    "enable_deterministic_inference": False,
    "skip_tokenizer_init": False,
}
MODEL = {"model_path": "m", "weight_version": "3", "is_generation": True, "has_image_understanding": False}
PATHS = {path: {} for path in NEEDED_PATHS}


class SaidServer:
    """A server with scripted answers; any other path returns 404."""

    url = "http://here"

    def __init__(self, answers: dict[str, object]) -> None:
        self.answers = answers

    async def get(self, path: str, timeout_s: float = 60.0):
        if path not in self.answers:
            raise RefusedError(f"{self.url}{path}: 404 Not Found")
        return self.answers[path]


def read(paths: object = PATHS, server: object = SERVER, model: object = MODEL, **others: object) -> Features:
    answers = {"/openapi.json": {"paths": paths}, "/server_info": server, "/model_info": model}
    return asyncio.run(read_features(SaidServer({**answers, **{f"/{k}": v for k, v in others.items()}})))


def test_a_server_reports_its_features():
    features = read()
    assert (features.version, features.model_path, features.device, features.dtype) == (
        "0.5.21.post1",
        "m",
        "cuda",
        "bfloat16",
    )
    assert (features.tp_size, features.max_input_tokens, features.max_total_tokens) == (2, 250, 32768)
    assert features.weight_version == "3"
    assert (features.priority, features.memory_saver, features.tokenizer) == (True, True, True)
    assert (features.routed_experts, features.deterministic, features.images) == (False, False, False)


def test_newer_servers_are_accepted():
    assert read(server={**SERVER, "version": "0.6.0rc1"}).version == "0.6.0rc1"
    assert read(server={**SERVER, "version": "1.0"}).version == "1.0"


@pytest.mark.parametrize("path", [path for path in NEEDED_PATHS if path not in ("/generate", "/server_info")])
def test_a_server_that_lacks_a_call_is_refused_by_version_and_what_is_missing(path):
    paths = {other: {} for other in NEEDED_PATHS if other != path}
    with pytest.raises(
        ServerError, match=rf"here: SGLang 0\.5\.21\.post1 lacks {path}; agentrl needs 0\.5\.21 or newer"
    ):
        read(paths)


def test_old_server_without_named_calls_is_refused():
    old = {"/generate": {}, "/get_server_info": {}, "/get_model_info": {}}
    message = r"SGLang 0\.4\.6 lacks /pause_generation.*/model_info; agentrl needs 0\.5\.21"
    with pytest.raises(ServerError, match=message):
        read(old, get_server_info={"version": "0.4.6"})
    with pytest.raises(ServerError, match="SGLang of an unknown version lacks"):
        read({"/generate": {}})


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({**SERVER, "version": "0.5.20"}, r"this server runs SGLang 0\.5\.20; agentrl needs 0\.5\.21"),
        (
            {key: SERVER[key] for key in SERVER if key != "tp_size"},
            r"SGLang 0\.5\.21\.post1 does not report 'tp_size'",
        ),
        ({**SERVER, "tp_size": "two"}, "does not report 'tp_size'"),
    ],
)
def test_an_older_or_foreign_answer_is_refused(server, message):
    with pytest.raises(ServerError, match=message):
        read(server=server)


def test_servers_that_are_not_sglang_or_do_not_sample_are_refused():
    with pytest.raises(ServerError, match="not an SGLang server: it has no /generate"):
        read({"/v1/completions": {}})
    with pytest.raises(ServerError, match=r"not an SGLang server: .*404"):
        asyncio.run(read_features(SaidServer({})))
    with pytest.raises(ServerError, match="'m' is served for embeddings"):
        read(model={**MODEL, "is_generation": False})


def test_memory_is_released_by_servers_that_can():
    check_memory_saver(SaidServer({}), read())
    for wrong in ({"enable_memory_saver": False}, {"device": "cpu"}):
        with pytest.raises(ServerError, match=r"colocate: the server http://here .*--enable-memory-saver"):
            check_memory_saver(SaidServer({}), read(server={**SERVER, **wrong}))


def test_unreachable_server_address_is_an_error():
    async def ask() -> None:
        client = ServerClient("http://127.0.0.1:9")
        try:
            await read_features(client)
        finally:
            await client.close()

    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9"):
        asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.sglang
def test_the_real_server_is_attached_by_its_address(sglang_server, sglang_model):
    async def attach() -> Features:
        client = ServerClient(sglang_server.url + "/")
        try:
            features = await read_features(client)
            with pytest.raises(ServerError, match="device cpu"):
                check_memory_saver(client, features)
            return features
        finally:
            await client.close()

    assert asyncio.run(attach()) == Features(
        version="0.5.21",
        model_path=str(sglang_model),
        device="cpu",
        dtype="float32",
        max_input_tokens=250,  # of 256: the server reserves room for sampled tokens
        max_total_tokens=32768,
        weight_version="0",
        priority=True,
    )


@pytest.mark.gpu
def test_a_gpus_memory_is_released_and_taken_again(sglang_model, tmp_path):
    import torch
    from sglang_server import START_S, new_server

    server = new_server(sglang_model, tmp_path / "log", sglang={"colocate": True})
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3, "temperature": 0}}

    async def use() -> None:
        server.start()
        await server.ready(START_S)
        client = ServerClient(server.url)
        try:
            check_memory_saver(client, await read_features(client))
            before = await client.generate(body)
            held = torch.cuda.mem_get_info()[0]
            await release_memory(client)
            assert torch.cuda.mem_get_info()[0] > held + 2**30
            await resume_memory(client, ["weights"])
            await client.post("/update_weights_from_disk", {"model_path": str(sglang_model), "weight_version": "1"})
            await resume_memory(client, ["kv_cache"])
            after = await client.generate(body)
            assert after["output_ids"] == before["output_ids"]
        finally:
            await client.close()
            await server.stop()

    asyncio.run(use())


def test_stated_sizes_must_be_those_of_the_server():
    features = read()
    check_sizes("http://a", features, {"tp_size": 2, "enable_dp_attention": False, "pp_size": None})
    with pytest.raises(ConfigError) as caught:
        check_sizes("http://a", features, {"tp_size": 4, "enable_dp_attention": True})
    (problem,) = caught.value.problems
    assert (problem.key, problem.kind) == ("rollout.sglang.server_args", Kind.CONFLICT)
    assert "tp_size 2, not 4" in problem.text
