"""Access control: requests need the secret token in the path, an allowed host name, and method GET."""

from __future__ import annotations

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.security.host_names import HOSTS, host_name

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """ASGI middleware: forwards GET requests under `/<token>/`, and adds `_HEADERS` to responses.

    The token is removed from the path of forwarded requests. The middleware uses no cookies and sends no CORS headers,
    so other origins cannot read responses.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        _, token, *rest = f"{scope['path']}/".split("/", 2)
        answer = self._refusal(scope, token)
        if answer is None and not scope["path"].startswith(f"/{token}/"):
            answer = RedirectResponse(f"/{token}/")
        inside = {**scope, "path": f"/{rest[0].removesuffix('/')}" if rest else "/", "raw_path": b""}
        await (answer or self._app)(inside if answer is None else scope, receive, send_guarded)

    def _refusal(self, scope: Scope, token: str) -> Response | None:
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return PlainTextResponse("Open the address that `agentrl view` printed.", 403)
        if host_name(Headers(scope=scope).get("host", "")) not in HOSTS:
            return PlainTextResponse(f"Use {' or '.join(HOSTS)} as the host name.", 403)
        if scope["method"] != "GET":
            return PlainTextResponse("This viewer is read-only.", 405, {"allow": "GET"})
        return None
