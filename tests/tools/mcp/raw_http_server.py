"""An MCP server over HTTP, written by hand, on a thread of the test. It speaks the handshake of 2025."""

from __future__ import annotations

import gzip
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex

TOOLS = (
    *("echo", "count", "headers", "silent", "fails", "status", "redirect", "html", "huge", "compressed", "event"),
    *("huge_event", "cut", "cookie"),
)


class RawHttpServer(ThreadingHTTPServer):
    """Counts the calls of each session.

    Attributes:
        sessions: session id -> calls so far; a session that is not in it is unknown.
        seen: methods of JSON-RPC and HTTP, in order.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.sessions: dict[str, int] = {}
        self.seen: list[str] = []
        self.cancelled: list[object] = []
        self.ended = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/mcp"

    def handle_error(self, request, client_address):
        """A client that is gone is no error."""


class Handler(BaseHTTPRequestHandler):
    """Answers a POST with JSON, and has no stream of its own (GET)."""

    protocol_version = "HTTP/1.1"
    server: RawHttpServer

    def do_GET(self):
        self.server.seen.append("GET")
        self.reply(405, b"")

    def do_DELETE(self):
        self.server.seen.append("DELETE")
        self.server.sessions.pop(self.headers.get("mcp-session-id", ""), None)
        self.reply(200, b"")

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, params = message["method"], message.get("params") or {}
        self.server.seen.append(method)
        if method == "initialize":
            self.server.sessions[session := token_hex(8)] = 0
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
            result = {"protocolVersion": params["protocolVersion"], **about}
            self.result(message, result, {"mcp-session-id": session})
        elif method == "server/discover":
            self.json({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
        elif self.headers.get("mcp-session-id") not in self.server.sessions:
            self.reply(404, b"no such session")
        elif method == "tools/list":
            schema = {"type": "object"}
            self.result(message, {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]})
        elif method == "tools/call":
            self.server.sessions[self.headers["mcp-session-id"]] += 1
            getattr(self, f"call_{params['name']}")(message, params.get("arguments") or {})
        else:
            if method == "notifications/cancelled":
                self.server.cancelled.append(params.get("requestId"))
            self.reply(202, b"")

    def call_echo(self, message, arguments):
        self.text(message, json.dumps(arguments))

    def call_count(self, message, arguments):
        self.text(message, str(self.server.sessions[self.headers["mcp-session-id"]]))

    def call_headers(self, message, arguments):
        self.text(message, json.dumps(dict(self.headers)))

    def call_silent(self, message, arguments):
        self.server.ended.wait(30)

    def call_fails(self, message, arguments):
        self.json({"id": message["id"], "result": {"content": [{"type": "text", "text": "no"}], "isError": True}})

    def call_status(self, message, arguments):
        self.reply(503, b"busy", {"content-type": "text/plain"})

    def call_redirect(self, message, arguments):
        self.reply(307, b"", {"location": "http://127.0.0.1:9/elsewhere"})

    def call_html(self, message, arguments):
        self.reply(200, b"<html>Sign in</html>", {"content-type": "text/html"})

    def call_huge(self, message, arguments):
        self.text(message, "x" * (9 * 2**20))

    def call_compressed(self, message, arguments):
        packed = gzip.compress(b"0" * 2**20)
        self.reply(200, packed, {"content-type": "application/json", "content-encoding": "gzip"})

    def call_event(self, message, arguments):
        self.event(message, "an event")

    def call_huge_event(self, message, arguments):
        self.event(message, "x" * (9 * 2**20))

    def call_cut(self, message, arguments):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b'{"jsonrpc"')
        self.close_connection = True

    def call_cookie(self, message, arguments):
        body = {"content": [{"type": "text", "text": self.headers.get("cookie", "none")}]}
        self.result(message, body, {"set-cookie": "seen=yes"})

    def text(self, message, text):
        self.result(message, {"content": [{"type": "text", "text": text}]})

    def event(self, message, text):
        body = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": text}]}}
        data = f"event: message\ndata: {json.dumps(body)}\n\n".encode()
        self.reply(200, data, {"content-type": "text/event-stream"})

    def result(self, message, result, headers=()):
        self.json({"id": message["id"], "result": result}, dict(headers))

    def json(self, message, headers=()):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.reply(200, body, {"content-type": "application/json", **dict(headers)})

    def reply(self, status, body, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Write nothing."""


@contextmanager
def serving():
    server = RawHttpServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
