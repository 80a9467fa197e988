"""A judge endpoint on this machine: OpenAI's chat completions over HTTP, with scripted grades and failures."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]  # Any: as parsed from JSON


@dataclass(frozen=True)
class Reply:
    """One answer: `text` is the model's text; `raw` replaces the complete body."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    delay_s: float = 0.0
    finish_reason: str = "stop"


def grade(body: Body) -> Reply:
    """10 if the quoted answer contains the quoted reference, else 0. It finds the quoted blocks by their code."""
    asked = body["messages"][-1]["content"]
    blocks = re.finditer(r"<<<([A-Z_]+) ([0-9a-f]{16})\n(.*?)\n\1 \2>>>", asked, re.DOTALL)
    said = {block[1]: block[3] for block in blocks}
    score = 10 if said.get("GROUND_TRUTH", "right") in said["ANSWER"] else 0
    return Reply(json.dumps({"reason": "as it stands", "score": score}))


class JudgeServer:
    """Answers with `replies` in order, then with `otherwise`; stores the requests."""

    def __init__(self, replies: Iterable[Reply] = (), otherwise: Callable[[Body], Reply] = grade) -> None:
        self.bodies: list[Body] = []
        self.keys: list[str | None] = []
        self.most_at_once = self._now = 0
        self._replies, self._otherwise = iter(replies), otherwise
        self._lock = threading.Lock()
        self.url = ""

    def answer(self, path: str, key: str | None, body: Body) -> Reply:
        if path != "/v1/chat/completions":
            return Reply(status=404, raw=b'{"error": {"message": "no such path"}}')
        with self._lock:
            self.bodies.append(body)
            self.keys.append(key)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            reply = next(self._replies, None) or self._otherwise(body)
        time.sleep(reply.delay_s)
        with self._lock:
            self._now -= 1
        return reply


def completion(reply: Reply, model: str) -> bytes:
    message = {"role": "assistant", "content": reply.text}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
    return json.dumps({**whole, "usage": usage}).encode()


@contextmanager
def serving(judge: JudgeServer) -> Iterator[JudgeServer]:
    """A running server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = judge.answer(self.path, self.headers.get("Authorization"), body)
            content = completion(reply, body["model"]) if reply.raw is None else reply.raw
            try:
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except OSError:  # the client has disconnected
                self.close_connection = True

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    judge.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield judge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
