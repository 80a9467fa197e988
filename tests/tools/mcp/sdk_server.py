"""A server of the SDK over HTTP; prints its address: `python sdk_server.py http|sse`."""

from __future__ import annotations

import asyncio
import base64
import socket
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from raw_server import PIXEL

server = MCPServer("sdk")


@server.tool()
def add(a: int, b: int = 0) -> int:
    return a + b


@server.tool()
def picture() -> Image:
    return Image(data=base64.b64decode(PIXEL), format="png")


@server.tool()
async def sleeps() -> str:
    await asyncio.sleep(60)
    return "late"


def main():
    kind = sys.argv[1]
    app = server.sse_app() if kind == "sse" else server.streamable_http_app()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # clients wait until uvicorn accepts
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/{'sse' if kind == 'sse' else 'mcp'}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


if __name__ == "__main__":
    main()
