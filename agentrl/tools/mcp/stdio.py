"""Connection to an MCP server that is a local process: one JSON message per line, with size limits.

The SDK's own transport is not used: it does not limit the size of a message, needs quadratic time for a long message,
and prints the server's error output.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter

from agentrl.tools.mcp.health import MAX_MESSAGE_BYTES, OUTPUT_ENDED, Health
from agentrl.tools.mcp.reaper import Reaper
from agentrl.tools.mcp.servers import McpServer

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

GRACE_S = 1.0
"""Seconds to wait for the end of a process after its input is closed, and again after SIGTERM."""
_KILL_S = 5.0
_REST_S = 0.2
"""Maximum seconds for reading the rest of the error output after the process has ended."""
_CHUNK = 2**16
_PAUSE_S = 0.01
"""Pause after a complete chunk of error output, so that endless output costs little CPU time."""


@asynccontextmanager
async def stdio_streams(server: McpServer, health: Health, reaper: Reaper) -> AsyncIterator[Streams]:
    """Start the server, and end all its processes at the end of the block.

    Raises:
        OSError: the command cannot be started.
    """
    process = await _start(server, reaper)
    errors = asyncio.ensure_future(_read_errors(process, health))
    try:
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        with incoming, received, sent, outgoing:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_read, process, incoming, health)
                tasks.start_soon(_write, process, outgoing, health)
                try:
                    yield received, sent
                finally:
                    with anyio.CancelScope(shield=True):
                        await _end(process, health)
                        await asyncio.wait({errors}, timeout=_REST_S)
                    tasks.cancel_scope.cancel()
    finally:
        _kill(process)  # a second cancellation can interrupt `_end`
        errors.cancel()
        reaper.ended(process.pid)


async def _start(server: McpServer, reaper: Reaper) -> asyncio.subprocess.Process:
    reaper.start()
    if not server.cwd.is_dir():
        raise NotADirectoryError(f"the working folder '{server.cwd}' does not exist")
    try:
        process = await asyncio.create_subprocess_exec(
            server.command,
            *server.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**_environment(), **server.env, **reaper.environment},
            cwd=server.cwd,
            limit=MAX_MESSAGE_BYTES,
            start_new_session=True,  # the server's processes form a group, which can be killed
        )
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no command '{server.command}'") from None
    reaper.started(process.pid)
    return process


def _environment() -> dict[str, str]:
    """Return the environment variables that every server gets.

    In PATH, Python's folder comes first, so that programs installed with pip are found.
    """
    inherited = get_default_environment()
    return {**inherited, "PATH": os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])}


async def _read(
    process: asyncio.subprocess.Process, into: MemoryObjectSendStream[SessionMessage | Exception], health: Health
) -> None:
    assert process.stdout is not None
    try:
        while line := await process.stdout.readline():
            message = _message(line)
            health.received(isinstance(message, JSONRPCResponse | JSONRPCError))
            if health.lost:
                break
            if message is None:
                health.unreadable(line)
            else:
                await into.send(SessionMessage(message))
        else:
            health.lose(OUTPUT_ENDED)
    except ValueError:
        health.lose(f"it sent a message of more than {MAX_MESSAGE_BYTES // 2**20} MiB")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError) as error:
        health.lose(f"its output cannot be read: {type(error).__name__}")
    finally:
        into.close()  # ends calls that wait for an answer


def _message(line: bytes) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:  # such as the text of a print()
        return None


async def _write(
    process: asyncio.subprocess.Process, outgoing: MemoryObjectReceiveStream[SessionMessage], health: Health
) -> None:
    assert process.stdin is not None
    try:
        async for item in outgoing:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode("utf-8", "replace") + b"\n")
            await process.stdin.drain()
    except OSError as error:
        health.lose(f"its input is closed: {type(error).__name__}")


async def _read_errors(process: asyncio.subprocess.Process, health: Health) -> None:
    assert process.stderr is not None
    with suppress(OSError):
        while chunk := await process.stderr.read(_CHUNK):
            health.wrote_error(chunk)
            if len(chunk) == _CHUNK:
                await asyncio.sleep(_PAUSE_S)


async def _end(process: asyncio.subprocess.Process, health: Health) -> None:
    health.lose()
    assert process.stdin is not None
    process.stdin.close()
    if not await _ended_within(process, GRACE_S):
        _signal(process, signal.SIGTERM)
        await _ended_within(process, GRACE_S)
    elif health.ended_by_itself:
        health.status = process.returncode
    _kill(process)
    await _ended_within(process, _KILL_S)


async def _ended_within(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Wait at most `seconds` until the process has ended and its output is closed.

    Return whether the process has ended. The wait can time out although the process has ended, because other processes
    may keep its output open.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    return process.returncode is not None


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the remaining processes of the group."""
    _signal(process, signal.SIGKILL)
    # otherwise the pipes stay open as long as a process outside the group uses them
    getattr(process, "_transport").close()  # noqa: B009  # private, but there is no public way


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
