"""The server: on this machine only, until Ctrl-C."""

from __future__ import annotations

import errno
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import uvicorn

from agentrl.errors import ConfigError
from agentrl.viewer.app import make_app
from agentrl.viewer.runs import ViewedRun

LOOPBACK = "127.0.0.1"
SWITCHES_EVERY_S = 0.001
"""A fifth of Python's own: a page does not wait for the thread that reads files."""
_QUIET: dict[str, Any] = {  # Any: uvicorn types each by itself
    "log_level": "critical",
    "access_log": False,
    "ws": "none",
    "server_header": False,
    "date_header": False,
    "proxy_headers": False,
}


def serve(runs: Sequence[ViewedRun], port: int | None = None, open_browser: bool = False) -> None:
    """Print the address and answer there; returns after Ctrl-C.

    Args:
        port: None takes a free one.

    Raises:
        ConfigError: the port is not free.
    """
    token = secrets.token_urlsafe(24)
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(port))
        for run in runs:
            run.index.start()
            stack.callback(run.index.close)
        address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/"
        print(f"agentrl: {' and '.join(run.name for run in runs)} at {address}\nagentrl: Ctrl-C ends it", flush=True)
        if open_browser:
            webbrowser.open(address)
        config = uvicorn.Config(make_app(runs, token), timeout_graceful_shutdown=0, **_QUIET)
        sys.setswitchinterval(SWITCHES_EVERY_S)
        _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which then raises them again: to `agentrl.interrupts` that is a second Ctrl-C."""
        earlier = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in earlier.items():
                signal.signal(each, handler)


def _listen(port: int | None) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port or 0))
        listener.listen()  # before the address is told: a browser may be there at once
    except (OSError, OverflowError) as error:
        listener.close()
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        why = "is in use" if in_use else f"cannot be had ({error})"
        raise ConfigError(f"port {port} {why}: say another --port, or none for a free one") from None
    return listener
