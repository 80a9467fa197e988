"""A fast fake SGLang server without a model: it imitates the answers, pauses, aborts and spans of SGLang 0.5.21.

The contract also runs on the real server (`test_real_engine.py`). If the two differ, fix this one.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
from pathlib import Path

from aiohttp import web
from torch import Tensor

from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.features import NEEDED_PATHS, read_features
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.weights import server_loader
from agentrl.engines.sglang.weights.delta import LOADER

VOCABULARY = 97
MAX_INPUT_TOKENS = 250
POSTS = [path for path in NEEDED_PATHS if path not in ("/server_info", "/model_info")]


class FakeModel:
    """Keeps the weights that were loaded."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}

    def load_weights(self, weights: list[tuple[str, Tensor]]) -> None:
        self.weights |= {name: tensor.clone() for name, tensor in weights}


class FakeServer:
    """Answers with tokens that depend only on the context, one every `token_s` seconds.

    Attributes:
        num_aborts_lost: a request is registered after so many aborts, which are lost.
        holds_at: number of tokens after which a request waits for an abort, or for another value.
        hung: while set, the server answers no request, like a stopped process.
        refuse: paths that answer `success: false`.
        failing: path -> number of further answers with status 500.
        requests: bodies of `/generate`, in order of arrival.
        headers: the headers of these requests.
        loaders: the custom weight loaders that the server was started with.
        model: gets the weights that a custom weight loader loads.
    """

    def __init__(self, token_s: float = 0.0005) -> None:
        self.url = ""
        self.token_s = token_s
        self.num_aborts_lost = 0
        self.holds_at: int | None = None
        self.hung = False
        self.refuse: set[str] = set()
        self.failing: dict[str, int] = {}
        self.requests: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self.calls: list[str] = []
        self.loaders = [LOADER]
        self._runner: web.AppRunner | None = None
        self._reset()

    async def start(self) -> FakeServer:
        app = web.Application(middlewares=[self._note], client_max_size=2**28)
        for path in POSTS:
            app.router.add_post(path, getattr(self, path[1:], self._agree))
        for path in ("server_info", "model_info", "health"):
            app.router.add_get("/" + path, getattr(self, path))
        app.router.add_post("/update_weight_version", self.update_weight_version)
        app.router.add_post("/get_weights_by_name", self.get_weights_by_name)
        app.router.add_get("/openapi.json", self.openapi)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def die(self) -> None:
        """Break every connection and forget all state."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()
        self._reset()

    async def replica(self, process: object | None = None) -> Replica:
        """The engine's handle of this server."""
        client = ServerClient(self.url)
        return Replica(client, await read_features(client), process)

    def _reset(self) -> None:
        self.version, self.paused = "0", False
        self.model = FakeModel()
        self._known: set[str] = set()
        self._aborted: set[str] = set()
        self._cached: list[list[int]] = []
        self._most_sampled = 0

    async def sampled(self, num_tokens: int = 1) -> None:
        """Wait until a request has so many tokens."""
        while self._most_sampled < num_tokens:  # noqa: ASYNC110
            await asyncio.sleep(self.token_s)

    @web.middleware
    async def _note(self, request: web.Request, handler):
        self.calls.append(request.path)
        while self.hung:  # noqa: ASYNC110  # set from outside, also in the middle of an answer
            await asyncio.sleep(0.005)
        if self.failing.get(request.path):
            self.failing[request.path] -= 1
            return web.Response(status=500, text="out of memory")
        if request.path in self.refuse:
            return web.json_response({"success": False, "message": "refused"})
        return await handler(request)

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        context, sampling, rid = body["input_ids"], body["sampling_params"], body["rid"]
        assert context, "an empty context kills a server"
        assert max(context) < VOCABULARY, "a token outside the vocabulary kills a server"
        if len(context) >= MAX_INPUT_TOKENS:
            return web.json_response({"error": {"message": "Input length exceeds the maximum"}}, status=400)
        while self.calls.count("/abort_request") < self.num_aborts_lost:  # noqa: ASYNC110
            await asyncio.sleep(self.token_s)
        self._known.add(rid)
        cached = max((_common(context, old) for old in self._cached), default=0)
        tokens, versions, reason = [], [], {"type": "length", "length": sampling["max_new_tokens"]}
        while len(tokens) < sampling["max_new_tokens"]:
            await asyncio.sleep(self.token_s)
            while self.hung or (rid not in self._aborted and (self.paused or len(tokens) == self.holds_at)):  # noqa: ASYNC110
                await asyncio.sleep(self.token_s)
            if rid in self._aborted:
                reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                break
            tokens.append(2 + (sum(context) * 7 + len(tokens) * len(tokens) * 11) % 90)
            versions.append(self.version)
            self._most_sampled = max(self._most_sampled, len(tokens))
            if tokens[-1] in (*sampling.get("stop_token_ids", ()), 96):
                reason = {"type": "stop", "matched": tokens[-1]}
                break
        self._cached.append([*context, *tokens])
        meta = {
            "id": rid,
            "finish_reason": reason,
            "prompt_tokens": len(context),
            "completion_tokens": len(tokens),
            "cached_tokens": min(cached, len(context) - 1),
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
            "weight_versions": _spans(versions),
        }
        return web.json_response({"output_ids": tokens, "meta_info": meta})

    async def abort_request(self, request: web.Request) -> web.Response:
        begins = (await request.json())["rid"]
        self._aborted |= {rid for rid in self._known if rid.startswith(begins)}
        return web.Response()

    async def pause_generation(self, request: web.Request) -> web.Response:
        assert (await request.json())["mode"] in ("in_place", "retract")
        self.paused = True
        return web.json_response({"status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        self.paused = False
        return web.json_response({"status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        self._cached.clear()
        return web.json_response({})

    async def update_weights_from_tensor(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["load_format"] in self.loaders:
            payload = pickle.loads(base64.b64decode(body["serialized_named_tensors"][0]))
            server_loader.load(self.model, payload)
        self.version = body.get("weight_version") or self.version
        return web.json_response({"success": True, "message": ""})

    async def get_weights_by_name(self, request: web.Request) -> web.Response:
        get = getattr(self.model, "get_weights_by_name", lambda name: None)
        answer = get((await request.json())["name"])
        return web.json_response({"error": {}} if answer is None else answer, status=400 if answer is None else 200)

    async def update_weight_version(self, request: web.Request) -> web.Response:
        self.version = (await request.json())["new_version"]
        return web.json_response({"success": True, "message": ""})

    async def _agree(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True, "message": ""})

    async def openapi(self, request: web.Request) -> web.Response:
        return web.json_response({"paths": {path: {} for path in NEEDED_PATHS}})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def server_info(self, request: web.Request) -> web.Response:
        said = {
            "version": "0.5.21",
            "device": "cpu",
            "dtype": "float32",
            "max_req_input_len": MAX_INPUT_TOKENS,
            "max_total_num_tokens": 32768,
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": 1,
            "enable_dp_attention": False,
            "enable_priority_scheduling": False,
            "enable_memory_saver": False,
            "enable_return_routed_experts": False,
            "enable_deterministic_inference": False,
            "skip_tokenizer_init": False,
            "custom_weight_loader": self.loaders,
        }
        return web.json_response(said)

    async def model_info(self, request: web.Request) -> web.Response:
        said = {"model_path": "tiny", "weight_version": self.version, "is_generation": True}
        return web.json_response({**said, "has_image_understanding": False})


class FakeProcess:
    """The `LocalServer` methods that the engine needs, around a fake server."""

    log_file = Path("replica-0.log")

    def __init__(self, server: FakeServer, starts: bool = True) -> None:
        self.server, self.starts = server, starts
        self.stopped = False
        self.may_restart = asyncio.Event()
        self.may_restart.set()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def api_key(self) -> None:
        return None

    @property
    def alive(self) -> bool:
        return self.server._runner is not None

    async def restart(self, timeout_s: float) -> None:
        from agentrl.engines.sglang.client import ServerError

        await self.may_restart.wait()
        await self.server.die()
        if not self.starts:
            raise ServerError("the server ended while it started")
        self.server.hung, self.server.refuse = False, set()
        await self.server.start()

    async def stop(self) -> None:
        self.stopped = True
        await self.server.die()


def _common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _spans(versions: list[str]) -> list[dict[str, object]]:
    if not versions:
        return [{"version": "0", "start": 0, "end": 0}]
    starts = [i for i in range(len(versions)) if i == 0 or versions[i] != versions[i - 1]]
    ends = [*starts[1:], len(versions)]
    return [{"version": versions[start], "start": start, "end": end} for start, end in zip(starts, ends, strict=True)]
