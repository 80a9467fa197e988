"""Judges, sandboxes and engines that send compressed bombs, endless streams or nonsense: a typed, bounded failure."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import socketserver
import threading
from contextlib import contextmanager

import pytest

from agentrl.config.reward_sources import JudgeConfig
from agentrl.engines.sglang import client
from agentrl.rewards.judge.client import JudgeClient
from agentrl.rewards.judge.reward import Judge
from agentrl.sandboxes import SandboxUnavailableError
from agentrl.sandboxes.sandbox_fusion.client import FusionClient, FusionProgram
from agentrl.security import bounded_json as remote
from agentrl.tools.base import InfraError
from agentrl.utils import retries
from agentrl.utils.http_client import open_session, request


@contextmanager
def answering(headers, chunks):
    """Address of a server that answers each request with these headers and byte strings, then closes the connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            length = 0
            while (line := self.rfile.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.rfile.read(length)
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + headers.encode() + b"\r\n\r\n")
                for chunk in chunks() if callable(chunks) else [chunks]:
                    self.wfile.write(chunk)
            except OSError:  # the client has disconnected
                pass

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(text):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


def bomb():
    """Four megabytes, compressed to four kilobytes."""
    return [gzip.compress(b"[" * 2**22)]


NONSENSE = {
    "bomb": ("Content-Type: application/json\r\nContent-Encoding: gzip", bomb),
    "bomb in a bomb": ("Content-Type: application/json\r\nContent-Encoding: gzip, gzip", bomb),
    "endless": ("Content-Type: application/json", lambda: itertools.repeat(b" " * 2**16)),
    "not packed": ("Content-Type: application/json\r\nContent-Encoding: gzip", b"{}"),
    "unknown packing": ("Content-Type: application/json\r\nContent-Encoding: zstd", b"{}"),
    "nested": ("Content-Type: application/json", b"[" * 100_000),
    "closed": ("Content-Type: application/json", b"[" * 3000 + b"]" * 3000),
    "digits": ("Content-Type: application/json", b"1" * 5000),
    "picture": ("Content-Type: image/png", bytes(range(256)) * 100),
    "empty": ("Content-Type: application/json", b""),
}
CHARSETS = ["hex", "undefined", "rot13", "idna", "base64", "utf-7", "no such thing"]
VERDICTS = {
    "nested": completion('{"score": 1, "reason": ' + "[" * 3000 + "]" * 3000 + "}"),
    "digits": completion('{"score": ' + "9" * 400 + "}"),
    "digits elsewhere": completion('{"score": 5, "reason": "", "more": ' + "9" * 400 + "}"),
    "infinite": completion('{"score": Infinity}'),
    "huge": completion('{"score": 1e999, "reason": ""}'),
    "choices": b'{"choices": {"0": 1}}',
    "message": b'{"choices": ["x"]}',
    "fence": completion("```" + "\n" * 100_000 + "x"),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small limits that are reached immediately, and no waits."""
    monkeypatch.setattr(remote.read_body, "__defaults__", (2**20,))
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 2**20)
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.0)


def judged(url, **options):
    config = JudgeConfig(url=f"{url}/v1", model="judge", max_retries=1, timeout_s=20.0, **options)
    judge = Judge(config, JudgeClient(config, lambda _: asyncio.sleep(0)))
    return asyncio.run(judge("sums", "5", "5", {"index": 3}))


@pytest.mark.parametrize("what", NONSENSE)
def test_hostile_judge_answers_are_infra_errors(what):
    with answering(*NONSENSE[what]) as url, pytest.raises(InfraError, match="no verdict: 2 tries"):
        judged(url)


@pytest.mark.parametrize("what", VERDICTS)
def test_hostile_judge_verdicts_are_infra_errors(what):
    with answering("Content-Type: application/json", VERDICTS[what]) as url, pytest.raises(InfraError, match="verdict"):
        judged(url)


@pytest.mark.parametrize("charset", CHARSETS)
def test_judge_answers_in_any_character_set_are_read(charset):
    good = completion('{"score": 5, "reason": "\N{LATIN SMALL LETTER E WITH ACUTE}"}')
    with answering(f"Content-Type: application/json; charset={charset}", good) as url:
        assert judged(url)["score"] == 0.5


def test_a_verdict_that_its_schema_cannot_be_computed_on(tmp_path):
    schema = {"type": "object", "properties": {"score": {"type": "number", "multipleOf": 0.01}}, "required": ["score"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    text = completion('{"score": ' + "9" * 299 + "}")
    with answering("Content-Type: application/json", text) as url, pytest.raises(InfraError, match="no verdict"):
        judged(url, answer_schema=tmp_path / "schema.json")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", NONSENSE)
def test_hostile_sandbox_answers_are_infra_errors(what):
    async def main(url):
        async with open_session() as session:
            await FusionClient(url, 100, 1).run(session, FusionProgram("1", "", "python", 10.0))

    with answering(*NONSENSE[what]) as url, pytest.raises(SandboxUnavailableError, match="4 tries failed"):
        asyncio.run(main(url))


@pytest.mark.parametrize("what", [name for name in NONSENSE if name not in ("picture", "empty", "closed", "digits")])
def test_hostile_engine_answers_are_refused(what):
    async def main(url):
        server = client.ServerClient(url)
        try:
            await server.generate({})
        finally:
            await server.close()

    with answering(*NONSENSE[what]) as url, pytest.raises(client.UnreachableError):
        asyncio.run(main(url))


def test_compressed_answer_is_read():
    async def main(url):
        async with open_session() as session:
            return (await request(session, "GET", url)).content

    with answering("Content-Encoding: gzip", gzip.compress(b"well")) as url:
        assert asyncio.run(main(url)) == b"well"
