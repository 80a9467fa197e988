"""A server that speaks E2B's protocols on one loopback port, for the real client.

Control plane, code interpreter and envd are told apart as behind E2B's proxy: by the header E2b-Sandbox-Id. Code and
commands really run, in processes of this machine. `server.fail` switches faults on.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import tempfile
import threading
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import uvicorn
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb
from e2b.envd.process.process_connect import Process, ProcessASGIApplication
from e2b_machine import HOME, BrokenOffError, Machine
from protobuf import Oneof
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

KEY = "e2b_0123456789abcdef"
ENVD = "49983"


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    Attributes:
        status: the answer; 0: none.
        after: the request is carried out first.
        hang: no answer.
        wait: the request waits for `server.release`.
        drop: the connection breaks after the first event of a stream.
        early: the stream ends without an error after the first event.
        die: the sandbox ends after the first event.
        body: text of a stream in place of the real events.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    after: bool = False
    hang: bool = False
    wait: bool = False
    drop: bool = False
    early: bool = False
    die: bool = False
    body: str | None = None


NO_FAULT = Fault()


class E2BServer:
    """State of the server. Tests call its public methods from their own thread."""

    def __init__(self, folder: Path, kind: type[Machine]) -> None:
        self.folder, self.kind, self.url = folder, kind, ""
        self.machines: dict[str, Machine] = {}
        self.requests: Counter[str] = Counter()
        self.bodies: list[dict] = []
        self.ended: list[str] = []
        self.errors: list[Exception] = []
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._by_key: dict[str, Machine] = {}
        self._released, self._loop = asyncio.Event(), asyncio.new_event_loop()
        self._arrived = threading.Condition()

    def fail(self, operation: str, *faults: Fault) -> None:
        """Let the next requests of an operation meet these faults."""
        self._faults[operation] += faults

    def release(self) -> None:
        """Let requests with `wait` go on."""
        self._loop.call_soon_threadsafe(self._released.set)

    def run(self, work: Coroutine) -> None:
        """Run the server to its end, in a thread."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(work)

    def wait_for(self, operation: str, number: int = 1) -> None:
        """Wait until that many requests of an operation have arrived."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.requests[operation] >= number, 60)

    async def app(self, scope, receive, send) -> None:
        """Answer a request; keep an error of the server itself for the test."""
        try:
            await self._app(scope, receive, send)
        except (BrokenOffError, ClientDisconnect, OSError):
            raise
        except Exception as error:
            self.errors.append(error)
            raise

    async def _app(self, scope, receive, send) -> None:
        request = Request(scope, receive)
        operation = operation_of(request)
        fault = self._faults[operation].popleft() if self._faults[operation] else NO_FAULT
        with self._arrived:
            self.requests[operation] += 1
            self._arrived.notify_all()
        if fault.hang:
            await disconnected(request)
            return
        if fault.wait:
            await self._released.wait()
        if fault.status and not fault.after:
            response = failure(fault)
        else:
            response = await self._answer(operation, request, fault)
            if fault.after:
                response = failure(fault)
        if response is None:
            await Envd(self, self._machine(request), fault).app(scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(self, operation: str, request: Request, fault: Fault) -> Response | None:
        if operation in CONTROL:
            if request.headers.get("x-api-key") != KEY:
                return JSONResponse({"code": 401, "message": "Invalid API key"}, 401)
            return await getattr(self, f"_{operation}")(request)
        machine = self._machine(request)
        if machine is None:
            message = "The sandbox was not found"
            return JSONResponse({"sandboxId": "?", "message": message, "code": 502}, 502)
        needs_token = request.headers.get("e2b-sandbox-port") == ENVD or operation == "execute"
        if needs_token and operation != "health" and request.headers.get("x-access-token") != f"token-{machine.id}":
            return JSONResponse({"code": 401, "message": "no access token"}, 401)
        if operation == "process":
            return None
        return await getattr(self, f"_{operation}")(request, machine, fault)

    def _machine(self, request: Request) -> Machine | None:
        machine = self.machines.get(request.headers.get("e2b-sandbox-id", ""))
        return None if machine is None or machine.dead.is_set() else machine

    async def _create(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        key = request.headers.get("idempotency-key", "")
        machine = self._by_key.get(key) if key else None
        if machine is None:
            machine = self.kind(self.folder, body, body.get("allow_internet_access", True))
            self.machines[machine.id] = self._by_key[key] = machine
        return JSONResponse(machine.created(), 201)

    async def _list(self, request: Request) -> Response:
        query = dict(request.query_params)
        wanted = {unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""))}
        found = [each for each in self.machines.values() if wanted.items() <= each.metadata.items()]
        first, most = int(query.get("nextToken", 0)), min(int(query.get("limit", 100)), 2)
        page = [each.listed() for each in found[first : first + most]]
        more = {"x-next-token": str(first + most)} if len(found) > first + most else {}
        return JSONResponse(page, headers=more)

    async def _info(self, request: Request) -> Response:
        if machine := self.machines.get(request.url.path.rpartition("/")[2]):
            return JSONResponse(machine.listed())
        return JSONResponse({"code": 404, "message": "sandbox not found"}, 404)

    async def _kill(self, request: Request) -> Response:
        if machine := self.machines.pop(request.url.path.rpartition("/")[2], None):
            await self.end(machine)
            return Response(status_code=204)
        return JSONResponse({"code": 404, "message": "sandbox not found"}, 404)

    async def end(self, machine: Machine) -> None:
        """End a sandbox."""
        self.machines.pop(machine.id, None)
        self.ended.append(machine.id)
        await machine.end()

    async def _health(self, request: Request, machine: Machine, fault: Fault) -> Response:
        return Response(status_code=204)

    async def _context(self, request: Request, machine: Machine, fault: Fault) -> Response:
        kernel = await machine.new_kernel()
        return JSONResponse({"id": kernel.id, "language": "python", "cwd": HOME})

    async def _remove_context(self, request: Request, machine: Machine, fault: Fault) -> Response:
        kernel = machine.kernels.pop(request.url.path.rpartition("/")[2], None)
        if kernel is None:
            return Response("Context not found", 404)
        await kernel.close()
        return JSONResponse(None)

    async def _execute(self, request: Request, machine: Machine, fault: Fault) -> Response:
        body = await request.json()
        kernel = machine.kernels.get(body["context_id"])
        if kernel is None:
            return Response(f"Context {body['context_id']} not found", 404)
        if env := body.get("env_vars"):
            _ = [event async for event in kernel.execute(f"import os; os.environ.update({env!r})")]
        return StreamingResponse(self._lines(kernel.execute(body["code"]), machine, fault))

    async def _lines(self, events: AsyncIterator[dict], machine: Machine, fault: Fault) -> AsyncIterator[str]:
        if fault.body is not None:
            yield fault.body
            return
        async for event in until_dead(events, machine):
            yield json.dumps(event) + "\n"
            if fault.drop:
                raise BrokenOffError
            if fault.early:
                return
            if fault.die:
                await self.end(machine)
                raise BrokenOffError
        yield '{"type": "end_of_execution"}\n'

    async def _read(self, request: Request, machine: Machine, fault: Fault) -> Response:
        path = request.query_params["path"]
        place = await machine.fetched(path)
        if not place.exists():
            return JSONResponse({"code": 404, "message": f"path '{path}' does not exist"}, 404)
        if not place.is_file():
            return JSONResponse({"code": 400, "message": f"path '{path}' is not a regular file"}, 400)
        return FileResponse(place)

    async def _write(self, request: Request, machine: Machine, fault: Fault) -> Response:
        path = request.query_params["path"]
        async with request.form() as form:
            data = await form["file"].read()
        try:
            await machine.write(path, data)
        except OSError as error:
            return JSONResponse({"code": 500, "message": f"error opening file: {error.strerror}"}, 500)
        return JSONResponse([{"name": Path(path).name, "type": "file", "path": path}])


class Envd(Process):
    """Runs the commands of one sandbox."""

    def __init__(self, server: E2BServer, machine: Machine, fault: Fault) -> None:
        self.server, self.machine, self.fault = server, machine, fault
        self.app = ProcessASGIApplication(self)

    async def start(self, request, ctx):
        config = request.process
        process = await self.machine.command([config.cmd, *config.args], env=dict(config.envs), cwd=config.cwd)
        yield answer("start", process_pb.ProcessEvent.StartEvent(pid=process.pid))
        if self.fault.die:
            await self.server.end(self.machine)
        if self.fault.early:
            return
        async for kind, data in until_dead(outputs(process), self.machine, ConnectError(Code.UNAVAILABLE, "ended")):
            yield answer("data", process_pb.ProcessEvent.DataEvent(output=Oneof(kind, data)))
        code = await process.wait()
        yield answer("end", process_pb.ProcessEvent.EndEvent(exit_code=max(code, -1), exited=True, status="exit"))


def answer(kind: str, value: object) -> process_pb.StartResponse:
    return process_pb.StartResponse(event=process_pb.ProcessEvent(event=Oneof(kind, value)))


async def outputs(process: asyncio.subprocess.Process) -> AsyncIterator[tuple[str, bytes]]:
    """Yield what a process writes, until its pipes are closed."""
    queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def read(kind: str, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(32768):
            queue.put_nowait((kind, data))
        queue.put_nowait((kind, b""))

    readers = [asyncio.ensure_future(read(kind, getattr(process, kind))) for kind in ("stdout", "stderr")]
    open_pipes = len(readers)
    try:
        while open_pipes:
            kind, data = await queue.get()
            open_pipes -= not data
            if data:
                yield kind, data
    finally:
        for reader in readers:
            reader.cancel()


async def until_dead(items: AsyncIterator, machine: Machine, error: Exception | None = None) -> AsyncIterator:
    """Yield items; break the connection off when the sandbox ends."""
    dead = asyncio.ensure_future(machine.dead.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(items, None))
            try:
                await asyncio.wait({following, dead}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not following.done():
                    following.cancel()
                    with suppress(asyncio.CancelledError):
                        await following
            if dead.done():
                raise error or BrokenOffError
            if (item := following.result()) is None:
                return
            yield item
    finally:
        dead.cancel()


CONTROL = ("create", "list", "info", "kill")


def operation_of(request: Request) -> str:
    """Name the operation of a request."""
    method, path = request.method, request.url.path
    if path.startswith("/process.Process/"):
        return "process"
    names = {
        ("POST", "/v2/sandboxes"): "create",
        ("GET", "/v2/sandboxes"): "list",
        ("GET", "/health"): "health",
        ("POST", "/execute"): "execute",
        ("POST", "/contexts"): "context",
        ("GET", "/files"): "read",
        ("POST", "/files"): "write",
    }
    starts = {
        ("GET", "/sandboxes/"): "info",
        ("DELETE", "/sandboxes/"): "kill",
        ("DELETE", "/contexts/"): "remove_context",
    }
    prefix = f"/{path.split('/')[1]}/"
    return names.get((method, path)) or starts[method, prefix]


def failure(fault: Fault) -> Response:
    return JSONResponse({"code": fault.status, "message": "a fault"}, fault.status, headers=fault.headers)


async def disconnected(request: Request) -> None:
    """Wait until the client gives up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextmanager
def e2b_server(folder: Path, kind: type[Machine] = Machine) -> Iterator[E2BServer]:
    """Run the server in a thread."""
    server = E2BServer(folder, kind)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else small events wait 40 ms for each other
    server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(
        server.app, interface="asgi3", lifespan="off", log_config=None, log_level=60, timeout_graceful_shutdown=1
    )
    running = uvicorn.Server(config)

    async def serve() -> None:
        try:
            await running.serve([listening])
        finally:
            for machine in [*server.machines.values()]:
                await machine.end()

    thread = threading.Thread(target=lambda: server.run(serve()), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.release()
        running.should_exit = True
        thread.join(30)
        listening.close()
    assert not server.errors, server.errors


def main() -> None:
    """Run the server until Ctrl-C, for a run of agentrl on this machine; see the exports that it prints."""
    with tempfile.TemporaryDirectory() as folder, e2b_server(Path(folder)) as server:
        print(f"export E2B_API_KEY={KEY} E2B_API_URL={server.url} E2B_SANDBOX_URL={server.url}", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
