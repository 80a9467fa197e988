"""Colocation: an idle server that shares its GPU with the trainer releases its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agentrl.engines.sglang.client import ServerClient, ServerError
from agentrl.engines.sglang.features import Features

Tag = Literal["weights", "kv_cache"]
BOTH: tuple[Tag, ...] = ("weights", "kv_cache")
KV_CACHE: tuple[Tag, ...] = ("kv_cache",)


def check_memory_saver(client: ServerClient, features: Features) -> None:
    """Refuse a server that cannot release its memory.

    Raises:
        ServerError: the server cannot release its memory; the message names the missing option.
    """
    if not features.memory_saver or features.device == "cpu":
        raise ServerError(
            f"rollout.sglang.colocate: the server {client.url} (device {features.device}) cannot release its memory:"
            " start it on a GPU with --enable-memory-saver"
        )


async def release_memory(client: ServerClient, tags: Sequence[Tag] = BOTH) -> None:
    """Free the server's memory for `tags`. No request may run, because SGLang flushes its cache."""
    await client.post("/release_memory_occupation", {"tags": list(tags)})


async def resume_memory(client: ServerClient, tags: Sequence[Tag] = BOTH) -> None:
    """Allocate the released memory again. The memory's content is lost: send new weights before sampling."""
    await client.post("/resume_memory_occupation", {"tags": list(tags)})
