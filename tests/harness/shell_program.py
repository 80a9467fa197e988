"""A harness for tests: each turn of the model is a shell command, which runs in the sandbox of this program.

It uses the standard library only. The output and exit code of a command are the next user message; `done` ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness_program import INSTRUCTION, ask


def main() -> None:
    """Run commands until the model ends."""
    messages = [{"role": "user", "content": INSTRUCTION}]
    print("home", os.environ["HOME"], Path.cwd(), flush=True)
    while (text := ask(messages)["content"]) != "done":
        ran = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
        messages += [{"role": "assistant", "content": text}]
        messages += [{"role": "user", "content": f"{ran.returncode} {ran.stdout}{ran.stderr}"}]
    sys.exit(int(os.environ.get("CODE", "0")))


if __name__ == "__main__":
    main()
