"""A server that shares its GPU with the trainer gives the memory back while it has nothing to do (colocation)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agentrl.engines.sglang.client import ServerClient, ServerError
from agentrl.engines.sglang.features import Features

Tag = Literal["weights", "kv_cache"]
BOTH: tuple[Tag, ...] = ("weights", "kv_cache")


def check_memory_saver(client: ServerClient, features: Features) -> None:
    """Refuse, at the start, a server whose memory cannot be released.

    Raises:
        ServerError: says what it would need.
    """
    if not features.memory_saver or features.device == "cpu":
        raise ServerError(
            f"rollout.sglang.colocate: the server {client.url} (device {features.device}) cannot release its memory:"
            " start it on a GPU with --enable-memory-saver"
        )


async def release_memory(client: ServerClient, tags: Sequence[Tag] = BOTH) -> None:
    """Free the server's memory of these kinds. Nothing may run: SGLang flushes its cache."""
    await client.post("/release_memory_occupation", {"tags": list(tags)})


async def resume_memory(client: ServerClient, tags: Sequence[Tag] = BOTH) -> None:
    """Take the memory again. What was in it is lost: send new weights before anything is sampled."""
    await client.post("/resume_memory_occupation", {"tags": list(tags)})
