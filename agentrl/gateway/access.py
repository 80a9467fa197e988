"""Access to the gateway: finds the key of a request, and refuses requests that web pages send."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import Generic, TypeVar

from agentrl.gateway.dialects.base import Failure
from agentrl.security.host_names import HOSTS, host_name

_T = TypeVar("_T")
_PREFIX = "s"


class Keys(Generic[_T]):
    """Secret keys, and the object of each key. Keys are looked up by hash, so that timing does not reveal them."""

    def __init__(self) -> None:
        self._opened: dict[bytes, _T] = {}

    def add(self, opened: _T, key: str = "") -> str:
        """Add a key for an object, and return the key. If `key` is empty, a random key is made."""
        key = key or secrets.token_urlsafe(32)
        self._opened[_digest(key)] = opened
        return key

    def find(self, key: str) -> _T | None:
        """Return the object of a key; None for an unknown key."""
        return self._opened.get(_digest(key))

    def remove(self, key: str) -> _T | None:
        """Remove a key, and return the object of the key; None for an unknown key."""
        return self._opened.pop(_digest(key), None)


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "replace")).digest()


def path_of(key: str) -> str:
    """Return the path prefix of a key's endpoints."""
    return f"/{_PREFIX}/{key}"


def key_and_endpoint(path: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the key of a request ("" if it has none) and the request's path after `/v1/`.

    The key is in the path, `/s/KEY/v1/...`, or else in the header `Authorization: Bearer KEY` or `x-api-key: KEY`.
    """
    first, _, rest = path.strip("/").partition("/")
    if first == _PREFIX:
        key, _, path = rest.partition("/")
    else:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    endpoint = path.strip("/")
    return key, "" if endpoint == "v1" else endpoint.removeprefix("v1/")


class Callers:
    """Accepts requests that programs send, and refuses requests that web pages send.

    A page in a browser on this machine could send requests to the gateway. Requests with a header Origin are refused,
    because browsers add this header to requests of pages. If a page's host name resolves to this machine (DNS
    rebinding), the header Host of the page's requests contains this host name. These requests are refused, too, unless
    the server accepts every host name.
    """

    def __init__(self, host: str, public_name: str | None) -> None:
        names = {name for name in (*HOSTS, host, public_name) if name}
        self._hosts = names if host in (*HOSTS, "::1") or public_name else None

    def refusal(self, headers: Mapping[str, str]) -> Failure | None:
        """Return why a caller is refused; None if it is accepted."""
        if "origin" in headers:
            return Failure(403, "forbidden_origin", "requests of web pages (header Origin) are refused")
        if self._hosts is not None and host_name(headers.get("host", "")) not in self._hosts:
            return Failure(403, "forbidden_host", f"use {' or '.join(HOSTS)} as the host name")
        return None
