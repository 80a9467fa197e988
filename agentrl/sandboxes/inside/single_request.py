"""Runs one request on a server that keeps nothing between calls (`agentrl.sandboxes.sandbox_fusion`).

The end of the interpreter kills only the interpreter's process group, because other processes may belong to the server.
"""

# not pathlib: its import would slow down each start
# ruff: noqa: PTH113, PTH114, PTH118, PTH119, PTH123, PTH202
from __future__ import annotations

import base64
import json
import os
import sys
from typing import TYPE_CHECKING, Any  # Any: JSON of the requests

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.actions import answer
    from agentrl.sandboxes.inside.interpreter import Interpreter


def once(request: dict[str, Any], most: int, reply_file: str, most_bytes: int) -> None:
    """Run code or a command; write the reply, with the files of the working folder, to `reply_file`.

    Args:
        most_bytes: maximum total size of the files; if they are larger, the reply contains no files.
    """
    own = {reply_file, os.path.basename(sys.argv[0])}
    if request["kind"] == "python":
        interpreter = Interpreter(owns_all=False)
        reply = interpreter.run(request["text"], request["seconds"], most)
        if not reply["state_lost"]:
            interpreter.close()
    else:
        reply = answer(request, most)
    with open(reply_file, "w") as file:
        json.dump({**reply, "files": all_files(own, most_bytes)}, file)


def all_files(own: set[str], most_bytes: int) -> dict[str, str] | None:
    """Return path -> content (base64) of the files of the working folder; None if they are too large."""
    found: dict[str, str] = {}
    for folder, _, names in os.walk("."):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name))
            if path in own or "__pycache__" in path or os.path.islink(path) or not os.path.isfile(path):
                continue
            most_bytes -= os.path.getsize(path) + len(path)
            if most_bytes < 0:
                return None
            with open(path, "rb") as file:
                found[path] = base64.b64encode(file.read()).decode()
    return found
