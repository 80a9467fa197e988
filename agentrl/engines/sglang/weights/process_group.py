"""torch.distributed process group of this process and one SGLang server, created the same way as in SGLang."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import (
    Backend,
    GroupName,
    PrefixStore,
    ProcessGroup,
    _new_process_group_helper,
)

from agentrl.engines.sglang.client import Answer, RefusedError, ServerClient, ServerError

JOIN_WITHIN_S = 60.0
BROADCAST_WITHIN_S = 600.0
_NUMBERS = itertools.count()


class ServerGroup:
    """Process group with one server; this process is rank 0, the server's tensor-parallel ranks are 1, 2, …

    With gloo, a broadcast that the server never joins cannot be stopped. So each operation of the group runs in a
    separate thread, which is abandoned if the server's HTTP answer is an error.

    Args:
        backend: gloo or nccl.
    """

    def __init__(self, client: ServerClient, num_ranks: int, backend: str) -> None:
        self._client = client
        self._size = 1 + num_ranks
        self._transport = backend
        self.name = f"agentrl-{os.getpid()}-{next(_NUMBERS)}"
        self._group: ProcessGroup | None = None
        self._store: TCPStore | None = None

    async def open(self) -> None:
        """Create the group, in this process and in the server.

        Raises:
            ServerError: the server did not join.
        """
        address = _address_towards(self._client.url)
        timeout = timedelta(seconds=JOIN_WITHIN_S)
        store = self._store = TCPStore(address, 0, self._size, is_master=True, timeout=timeout, wait_for_workers=False)
        body = {
            "master_address": address,
            "master_port": store.port,
            "rank_offset": 1,
            "world_size": self._size,
            "group_name": self.name,
            "backend": self._transport,
        }
        asking = self._client.post("/init_weights_update_group", body, timeout_s=JOIN_WITHIN_S)
        await _together(asking, partial(self._join, PrefixStore(self.name, store)))

    async def broadcast(self, data: Tensor, asking: Coroutine[object, object, Answer]) -> None:
        """Send `data`, [bytes] uint8, to the server; the call `asking` tells the server to receive the data.

        Raises:
            ServerError: the server did not receive the data.
        """
        assert self._group  # `open` was called before
        sent = data if self._transport == "gloo" else data.cuda()
        await _together(asking, partial(_broadcast, self._group, sent))

    async def close(self) -> None:
        """Leave the group, and make the server leave the group if the server still answers.

        Abandoned threads of this process then end.
        """
        with suppress(ServerError):  # a dead server has no group to leave
            await self._client.post("/destroy_weights_update_group", {"group_name": self.name}, timeout_s=5.0)
        if (group := self._group) is not None:
            self._group = None
            await asyncio.wait({_in_thread(partial(_destroy, group))}, timeout=5.0)
        self._store = None

    def _join(self, store: PrefixStore) -> None:
        name, timeout = GroupName(self.name), timedelta(seconds=BROADCAST_WITHIN_S)
        self._group, _ = _new_process_group_helper(
            self._size, 0, [], Backend(self._transport), store, group_name=name, timeout=timeout
        )


def _broadcast(group: ProcessGroup, data: Tensor) -> None:
    with torch.cuda.device(data.device if data.is_cuda else -1):  # a new thread starts with GPU 0 as its device
        group.broadcast(data, 0).wait()
        if data.is_cuda:
            torch.cuda.synchronize()


def _destroy(group: ProcessGroup) -> None:
    group.abort()
    distributed.destroy_process_group(group)


async def _together(asking: Coroutine[object, object, Answer], work: Callable[[], None]) -> None:
    """Send the request `asking`, and run `work` in a thread meanwhile. If the request fails, `work` is abandoned."""
    working = _in_thread(work)
    await asking
    try:
        await asyncio.wait_for(working, JOIN_WITHIN_S)
    except (RuntimeError, TimeoutError) as error:
        raise RefusedError(f"the process group with the server failed in the training process: {error}") from error


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` in a daemon thread, which does not keep the process alive. Unread errors are not reported."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def settle(error: Exception | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(None)

    def run() -> None:
        error = None
        try:
            work()
        except Exception as raised:  # every error goes to the future
            error = raised
        with suppress(RuntimeError):  # the event loop is closed: nothing waits for the result
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="server-group", daemon=True).start()
    return future


def _address_towards(url: str) -> str:
    """Address of this machine on the route to the server at `url`. Nothing is sent."""
    parts = urlsplit(url)
    family, _, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
