"""The viewer's server: runs on this machine only, until Ctrl-C."""

from __future__ import annotations

import errno
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn

from agentrl.errors import ConfigError
from agentrl.security.visible_text import visible
from agentrl.viewer.app import make_app
from agentrl.viewer.runs import ViewedRun

LOOPBACK = "127.0.0.1"
READ_AT_ONCE = 2
"""With more runs than this, the rollouts of a run are read only when a page first requests them."""

SWITCHES_EVERY_S = 0.001
"""Thread switch interval, a fifth of Python's default, so that requests wait less for the thread that reads files."""
_QUIET: dict[str, Any] = {  # Any: uvicorn's options have different types
    "log_level": "critical",
    "access_log": False,
    "loop": "asyncio",  # uvloop would replace the signal file descriptor of agentrl.concurrency.signals
    "ws": "none",
    "server_header": False,
    "date_header": False,
    "proxy_headers": False,
}


def serve(runs: Sequence[ViewedRun], port: int | None = None, open_browser: bool = False) -> None:
    """Start the server and print its address; return after Ctrl-C.

    Args:
        port: port to listen on; None: any free port.

    Raises:
        ConfigError: the port is not free.
    """
    token = secrets.token_urlsafe(24)
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(port))
        for run in runs:
            if len(runs) <= READ_AT_ONCE:
                run.index.start()
            stack.callback(run.index.close)
        address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/"
        names = " and ".join(run.name for run in runs) if len(runs) <= READ_AT_ONCE else f"{len(runs)} runs"
        print(f"agentrl: {visible(names)} at {address}\nagentrl: press Ctrl-C to stop", flush=True)
        if open_browser:
            webbrowser.open(stack.enter_context(_leads_to(address)))
        config = uvicorn.Config(make_app(runs, token), timeout_graceful_shutdown=0, **_QUIET)
        sys.setswitchinterval(SWITCHES_EVERY_S)
        _Server(config).run(sockets=[listener])


@contextmanager
def _leads_to(address: str) -> Iterator[str]:
    """Yield the URL of a private file that redirects to `address`.

    `address` contains the secret token. Other users of this machine can see the browser's arguments, so the browser
    gets the file's URL instead.
    """
    with TemporaryDirectory(prefix="agentrl-view-") as folder:  # the folder has mode 0700
        page = Path(folder) / "open.html"
        page.touch(mode=0o600)
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
        yield page.as_uri()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but do not raise them again, because that would count as a second Ctrl-C."""
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
        listener.listen()  # before the address is printed: a browser may connect immediately
    except (OSError, OverflowError) as error:
        listener.close()
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        why = "is in use" if in_use else f"cannot be used ({error})"
        raise ConfigError.keyless(
            f"port {port} {why}: use another --port, or leave it out to use any free port"
        ) from None
    return listener
