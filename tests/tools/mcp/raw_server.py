"""An MCP server over stdio, written by hand, whose tools and start misbehave: `python raw_server.py [START]`.

Standard library only, so that it starts fast. It speaks the handshake of 2025.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CALLS = 0
CANCELLED = []
WAITING = {}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(number, *content, **more):
    send({"id": number, "result": {"content": [*content], **more}})


def text(value):
    return {"type": "text", "text": str(value)}


def tool(name, **properties):
    return {"name": name, "description": name, "inputSchema": {"type": "object", "properties": properties}}


def echo(number, arguments):
    answer(number, text(json.dumps(arguments, sort_keys=True)))


def count(number, arguments):
    global CALLS
    CALLS += 1
    answer(number, text(CALLS))


def pid(number, arguments):
    answer(number, text(os.getpid()))


def environment(number, arguments):
    answer(number, text(json.dumps(dict(os.environ))), text(Path.cwd()))


def silent(number, arguments):
    """Never answers."""


def cancelled(number, arguments):
    answer(number, text(CANCELLED))


def die(number, arguments):
    sys.stderr.write("Traceback: the disk is on fire\n")
    sys.stderr.flush()
    os._exit(3)


def hang(number, arguments):
    signal.pause()


def fails(number, arguments):
    answer(number, text("no such city"), isError=True)


def refuses(number, arguments):
    send({"id": number, "error": {"code": -32602, "message": "the argument 'city' is missing"}})


def breaks(number, arguments):
    send({"id": number, "error": {"code": -32603, "message": "internal error"}})


def pretends(number, arguments):
    """Answers with the code that the SDK uses for its own timeouts."""
    send({"id": number, "error": {"code": -32001, "message": "timed out"}})


def lies(number, arguments):
    send({"id": number, "result": {"content": "not a list"}})


def twice(number, arguments):
    answer(number, text("first"))
    answer(number, text("second"))


def other_id(number, arguments):
    answer(number + 1000, text("for nobody"))


def garbage(number, arguments):
    sys.stdout.write("Loading the model\n{\n\x00\xff[[[\n" + "[" * 100_000 + "\n")
    sys.stdout.flush()
    answer(number, text("after garbage"))


def big(number, arguments):
    answer(number, text("x" * int(arguments["bytes"])))


def flood(number, arguments):
    while True:
        send({"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}})


def errors(number, arguments):
    """Fills its error output forever, from a process of its own."""
    subprocess.Popen(
        [sys.executable, "-c", "import sys\nwhile True: sys.stderr.write('x' * 65536)"], stdin=subprocess.DEVNULL
    )
    answer(number, text("ok"))


def forks(number, arguments):
    """Starts a process in its group, and one that leaves the group; both ignore SIGTERM."""
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=new
        )
        for new in (False, True)
    ]
    for process in started:
        process.stdout.readline()
    answer(number, text(json.dumps([os.getpid(), *(process.pid for process in started)])))


def stubborn(number, arguments):
    """Ends neither at the end of its input nor at SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answer(number, text(os.getpid()))
    sys.stdout.flush()
    while True:
        time.sleep(600)


def changes(number, arguments):
    for _ in range(3):
        send({"method": "notifications/tools/list_changed"})
    answer(number, text("changed"))


def renames(number, arguments):
    """Offers other tools from now on."""
    os.environ["OFFERED"] = json.dumps([tool("echo", a={"type": "string"}), tool("count")])
    send({"method": "notifications/tools/list_changed"})
    answer(number, text("renamed"))


def asks(number, arguments):
    """Asks the client to sample, and answers with what it said."""
    WAITING["sample"] = number
    params = {"messages": [{"role": "user", "content": text("say yes")}], "maxTokens": 5}
    send({"id": "sample", "method": "sampling/createMessage", "params": params})


def image(number, arguments):
    answer(number, text("a pixel"), {"type": "image", "data": PIXEL, "mimeType": "image/png"})


def bad_image(number, arguments):
    answer(number, {"type": "image", "data": base64.b64encode(b"nothing").decode(), "mimeType": "image/png"})


def many_images(number, arguments):
    answer(number, *[{"type": "image", "data": PIXEL, "mimeType": "image/png"}] * 17)


def media(number, arguments):
    answer(
        number,
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "a text"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA", "mimeType": "application/pdf"}},
        {"type": "resource_link", "uri": "https://example.com/", "name": "example"},
    )


def structured(number, arguments):
    answer(number, structuredContent={"a": [1, 2]})


def nothing(number, arguments):
    answer(number)


TOOLS = {
    function.__name__: function
    for function in (
        *(echo, count, pid, environment, silent, cancelled, die, hang, fails, refuses, breaks, pretends, lies, twice),
        *(
            other_id,
            garbage,
            big,
            flood,
            errors,
            forks,
            stubborn,
            changes,
            renames,
            asks,
            image,
            bad_image,
            many_images,
        ),
        *(media, structured, nothing),
    )
}


def listing(params):
    start = sys.argv[1:]
    if start == ["pages"]:
        page = int(params.get("cursor") or 0)
        names = [*TOOLS][page * 5 : page * 5 + 5]
        return {"tools": [tool(name) for name in names], "nextCursor": str(page + 1)} if names else {"tools": []}
    if start == ["endless"]:
        return {"tools": [tool(f"t{params.get('cursor')}")], "nextCursor": str(int(params.get("cursor") or 0) + 1)}
    if start == ["crowd"]:
        return {"tools": [tool(f"t{number}") for number in range(1001)]}
    if start == ["none"]:
        return {"tools": []}
    if start == ["nonsense"]:
        return {"tools": [{"name": 3}]}
    if "OFFERED" in os.environ:
        return {"tools": json.loads(os.environ["OFFERED"])}
    return {"tools": [tool(name) for name in TOOLS]}


def serve(message):
    method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        about = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "raw", "version": "1"}}
        send({"id": number, "result": {"protocolVersion": params["protocolVersion"], **about}})
    elif method == "tools/list":
        send({"id": number, "result": listing(params)})
    elif method == "tools/call":
        TOOLS[params["name"]](number, params.get("arguments") or {})
    elif method == "notifications/cancelled":
        CANCELLED.append(params.get("requestId"))
    elif method is None and number in WAITING:
        answer(WAITING.pop(number), text(message.get("error", {}).get("message", "it sampled")))
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": "unknown method"}})


def main():
    match sys.argv[1:]:
        case ["exits"]:
            sys.exit("the key is missing: SECRET-VALUE-1")
        case ["sleeps"]:
            signal.pause()
        case ["chatters"]:
            while True:
                print("this is not JSON")
    for line in sys.stdin:
        serve(json.loads(line))


if __name__ == "__main__":
    main()
