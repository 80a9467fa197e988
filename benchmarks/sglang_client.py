"""Measure the SGLang client's overhead: CPU seconds per request, with a server that replies immediately.

    OMP_NUM_THREADS=1 python benchmarks/sglang_client.py

The server is another process and computes nothing. Conversations have two turns. Contexts have 512 tokens; replies have
64 tokens with log-probabilities and a weight version. Each number of requests in flight is measured several times,
alternating with the other numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import orjson

from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.engine import SglangEngine
from agentrl.engines.sglang.features import Features
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.requests import Terms
from agentrl.engines.sglang.weights.disk import DiskTransfer

NUM_CONTEXT, NUM_SAMPLED = 512, 64
FEATURES = Features("0.5.21", "none", "cpu", "float32", None, 4090, 32768, "0")


def _answer() -> bytes:
    token_ids = list(range(100, 100 + NUM_SAMPLED))
    meta = {
        "finish_reason": {"type": "length", "length": NUM_SAMPLED},
        "prompt_tokens": NUM_CONTEXT,
        "completion_tokens": NUM_SAMPLED,
        "cached_tokens": 0,
        "output_token_logprobs": [[-1.2345678901234, token, None] for token in token_ids],
        "weight_versions": [{"version": "0", "start": 0, "end": NUM_SAMPLED}],
    }
    content = orjson.dumps({"output_ids": token_ids, "meta_info": meta})
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content


class _Instant(asyncio.Protocol):
    """Replies to every complete request with the same bytes."""

    answer = _answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, _ = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        length = int(lengths[0]) if lengths else 0  # no length: a health check
        if len(self.buffer) >= len(head) + 4 + length:
            self.buffer = b""
            self.transport.write(self.answer)


def _serve(port: Connection) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Instant, "127.0.0.1", 0, backlog=4096)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def _measure(engine: SglangEngine, in_flight: int, num_requests: int) -> float:
    """Return the CPU seconds per request."""
    context = list(range(1000, 1000 + NUM_CONTEXT))
    sessions = iter(range(num_requests // 2))

    async def talk() -> None:
        for session in sessions:
            request = GenerateRequest(context, SamplingParams(max_new_tokens=NUM_SAMPLED), f"{in_flight}-{session}", 60)
            await engine.generate(request)
            await engine.generate(request)
            await engine.release(request.session)

    began = time.process_time()
    await asyncio.gather(*(talk() for _ in range(in_flight)))
    return (time.process_time() - began) / num_requests


async def _run(url: str, rounds: int) -> None:
    client = ServerClient(url)
    terms = Terms(vocabulary=32000, max_sequence_length=4096, max_input_tokens=4090)
    transfer = DiskTransfer({}, None, 1, Path())
    engine = SglangEngine([Replica(client, FEATURES)], transfer, terms, health_timeout_s=3600)
    numbers = {1: 500, 128: 2048, 2048: 4096}
    await _measure(engine, 2048, 4096)  # opens the connections
    seen: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(rounds):
        for number, num_requests in numbers.items():
            seen[number].append(await _measure(engine, number, num_requests))
    for number, costs in seen.items():
        low, middle, high = (1e6 * value for value in (min(costs), statistics.median(costs), max(costs)))
        print(f"{number:5} in flight: {middle:6.0f} us a request ({low:.0f} to {high:.0f})", flush=True)
    await engine.close()


def main() -> None:
    """Measure, and print a line for each number of requests in flight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    server.start()
    try:
        asyncio.run(_run(f"http://127.0.0.1:{here.recv()}", rounds))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
