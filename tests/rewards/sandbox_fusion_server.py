"""A Sandbox Fusion test server: it runs Python, answers like bytedance/SandboxFusion, and can misbehave."""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KNOWN = {
    "compile_timeout": (int, float),
    "run_timeout": (int, float),
    "memory_limit_MB": int,
    "code": str,
    "stdin": (str, type(None)),
    "language": str,
    "files": dict,
    "fetch_files": list,
}


@dataclass
class Behaviour:
    """The behaviour for the next requests, one entry each; then normal: a status, or a name in `Handler.answer`."""

    faults: list[int | str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[dict[str, object]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def sandbox_fusion(*faults: int | str, headers: dict[str, str] | None = None) -> Iterator[tuple[str, Behaviour]]:
    """(its address, its behaviour)."""
    behaviour = Behaviour(list(faults), headers or {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, behaviour))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # a client that does not read to the end
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", behaviour
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    def __init__(self, behaviour: Behaviour, *args) -> None:
        self.behaviour = behaviour
        super().__init__(*args)

    def do_GET(self) -> None:
        known = self.path == "/v1/ping"
        self.reply(200 if known else 404, "pong" if known else {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.behaviour.lock:
            fault = self.behaviour.faults.pop(0) if self.behaviour.faults else None
            self.behaviour.requests.append(body)
        self.answer(body, fault)

    def answer(self, body: dict[str, object], fault: int | str | None) -> None:
        if self.path != "/run_code":
            self.reply(404, {"detail": "Not Found"})
        elif not isinstance(body.get("code"), str) or any(not isinstance(body[key], KNOWN[key]) for key in body):
            self.reply(422, {"detail": "validation error"})
        elif isinstance(fault, int):
            self.reply(fault, {"detail": "in trouble"})
        elif fault == "garbage":
            self.reply(200, "no object")
        elif fault == "no output":
            self.reply(200, {"status": "Success", "message": "", **NOTHING, "run_result": {"stdout": 5}})
        elif fault == "error":
            self.reply(200, {"status": "SandboxError", "message": "no space left on device", **NOTHING})
        elif fault == "files":
            self.reply(200, {"status": "Success", "message": "", **NOTHING, "run_result": {}, "files": {"a": "?"}})
        elif fault == "huge":
            self.reply(200, {"status": "Success", "message": "x" * 40_000_000, **NOTHING})
        elif fault == "dropped":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            self.close_connection = True
        elif fault == "hang":
            time.sleep(5.0)
        else:
            self.reply(200, self.counted(body))

    def counted(self, body: dict[str, object]) -> dict[str, object]:
        behaviour = self.behaviour
        with behaviour.lock:
            behaviour.running += 1
            behaviour.most_running = max(behaviour.most_running, behaviour.running)
        try:
            return run_code(body)
        finally:
            with behaviour.lock:
                behaviour.running -= 1

    def reply(self, status: int, content: object) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **self.behaviour.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args) -> None:
        pass


NOTHING = {"compile_result": None, "run_result": None, "executor_pod_name": None, "files": {}}


def run_code(body: dict[str, object]) -> dict[str, object]:
    """The server's answer for a Python program; a C++ program is only compiled, and always fails."""
    if body["language"] != "python":
        compiled = command("Finished", 1, "", "error: expected ';'")
        return {"status": "Failed", "message": "", **NOTHING, "compile_result": compiled}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, content in body["files"].items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(content))
        (script := Path(folder, "tmp_script.py")).write_text(str(body["code"]))
        ran = run([str(script)], body, folder)
        found = {name: Path(folder, name) for name in body["fetch_files"]}
        files = {name: base64.b64encode(path.read_bytes()).decode() for name, path in found.items() if path.is_file()}
    good = ran["status"] == "Finished" and ran["return_code"] == 0
    return {"status": "Success" if good else "Failed", "message": "", **NOTHING, "run_result": ran, "files": files}


def run(arguments: Sequence[str], body: dict[str, object], folder: str) -> dict[str, object]:
    process = subprocess.Popen(
        [sys.executable, "-S", *arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(limit_memory, int(str(body["memory_limit_MB"]))),
    )
    try:
        out, err = process.communicate(body["stdin"] or "", timeout=float(str(body["run_timeout"])))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return command("TimeLimitExceeded", None, out, err)
    return command("Finished", process.returncode, out, err)


def limit_memory(megabytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, megabytes * 2**20))


def command(status: str, return_code: int | None, stdout: str, stderr: str) -> dict[str, object]:
    return {
        "status": status,
        "execution_time": 0.1,
        "return_code": return_code,
        "stdout": stdout,
        "stderr": stderr,
    }
