"""Code that `agent_loop.py` shares with the peers: one conversation, one tool, and the protocol of a measurement.

Imports only the standard library, because each peer (verl, TRL) runs this code in its own environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "weather in Paris"}}\n</tool_call>'
RESULT = "Nothing is known about weather in Paris."
ANSWER = "It rains."
GROUP_SIZE = 10
"""Number of rollouts of one question, as in GRPO."""


async def search(query: str) -> str:
    """Search.

    Args:
        query: what for.
    """
    return f"Nothing is known about {query}."


def question(rollout: int) -> list[dict[str, str]]:
    """Return the prompt of a rollout."""
    return [{"role": "user", "content": f"Will it rain in Paris on day {rollout // GROUP_SIZE}?"}]


class Stopwatch:
    """Measures wall-clock time, and the CPU time of all threads together, in microseconds per turn."""

    def __init__(self, num_turns: int) -> None:
        self._num_turns = num_turns

    def __enter__(self) -> Stopwatch:
        self._start = (time.perf_counter(), time.process_time())
        return self

    def __exit__(self, *_: object) -> None:
        end = (time.perf_counter(), time.process_time())
        self.wall_us, self.cpu_us = (1e6 * (b - a) / self._num_turns for a, b in zip(self._start, end, strict=True))


def serve(measure: Callable[[int, int], Stopwatch], versions: dict[str, str]) -> None:
    """Print the versions, then read requests from standard input and print one result for each request.

    A request is a line `num_rollouts num_turns`. All output is JSON.
    """
    measure(2, 3)  # warm-up
    print(json.dumps(versions), flush=True)
    for line in sys.stdin:
        spent = measure(*map(int, line.split()))
        print(json.dumps({"wall_us": spent.wall_us, "cpu_us": spent.cpu_us}), flush=True)
