"""A retrieval service on this machine, as in Search-R1; it can misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSAGES = ("Karito\nThe mayor is Belona.", '"Owl"\nOwls fly at night.\nThey see well.', "Alone")


@dataclass
class Behaviour:
    """What the service does next, one entry for each request: a status, or the bytes of an answer; then normal.

    Attributes:
        together: each request waits until this number of requests is running.
        silent: no request is answered before this event.
        find: (query, number of passages) -> passages.
    """

    faults: list[int | bytes] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    together: threading.Barrier | None = None
    requests: list[dict[str, object]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    silent: threading.Event | None = None
    find: Callable[[str, int], list[str]] = lambda query, top_k: [*PASSAGES[:top_k]]
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def retrieval_server(*faults: int | bytes, **options) -> Iterator[tuple[str, Behaviour]]:
    """(the address of a service, its behaviour)."""
    behaviour = Behaviour([*faults], **options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, behaviour))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/retrieve", behaviour
    finally:
        if behaviour.silent is not None:
            behaviour.silent.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    def __init__(self, behaviour: Behaviour, *args) -> None:
        self.behaviour = behaviour
        super().__init__(*args)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        behaviour = self.behaviour
        with behaviour.lock:
            fault = behaviour.faults.pop(0) if behaviour.faults else None
            behaviour.requests.append(body)
            behaviour.running += 1
            behaviour.most_running = max(behaviour.most_running, behaviour.running)
        if behaviour.together is not None:
            behaviour.together.wait(10)
        if behaviour.silent is not None:
            behaviour.silent.wait()
        with behaviour.lock:
            behaviour.running -= 1
        if isinstance(fault, int):
            self.reply(fault, b'{"detail": "in trouble"}', behaviour.headers)
        else:
            self.reply(200, json.dumps(found(body, behaviour.find)).encode() if fault is None else fault, {})

    def reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args) -> None:
        pass


def found(body: dict[str, object], find: Callable[[str, int], list[str]]) -> dict[str, object]:
    def hits(query: str) -> list[dict[str, object]]:
        return [{"document": {"id": "7", "contents": text}, "score": 0.5} for text in find(query, body["topk"])]

    return {"result": [hits(query) for query in body["queries"]]}
