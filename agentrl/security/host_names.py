"""Check of the header `Host` in requests to a server on this machine."""

from __future__ import annotations

from urllib.parse import urlsplit

HOSTS = ("127.0.0.1", "localhost")
"""Allowed host names. The check blocks DNS rebinding, where another site's name resolves to this machine.

Every port is allowed, because a tunnel may use another port."""


def host_name(host: str) -> str | None:
    """Return the name in a header Host, without the port; None if the header is invalid."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
