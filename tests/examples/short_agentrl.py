"""`agentrl` for the documentation: training takes two steps and validates on 8 rows; servers serve one client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

AGENTRL: list[str] = json.loads(os.environ["AGENTRL_OF_TESTS"])
SHORT = ["trainer.total_training_steps=2", "trainer.stop_when=null", "trainer.test_freq=0", "data.val_max_samples=8"]
FEW_ROWS = ["data.train_max_samples=64"]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["view"]:
        return view(arguments)
    if os.environ["DRY_RUN"] == "1":
        arguments = [*arguments, "--dry-run"]
    elif arguments[:1] == ["gateway"]:
        return gateway(arguments)
    elif arguments[:1] == ["train"]:
        arguments = [*arguments, *SHORT, *FEW_ROWS * ("+experiment=calculator" in arguments)]
    return subprocess.run([*AGENTRL, *arguments]).returncode


def view(arguments: list[str]) -> int:
    """Request the page at the printed address, then send Ctrl-C."""
    arguments = [word for word in arguments if word != "--open"]  # no browser is installed
    with subprocess.Popen([*AGENTRL, *arguments], stdout=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdout is not None
        for line in viewer.stdout:
            if address := re.search(r"http://\S+", line):
                with urllib.request.urlopen(address[0]) as page:
                    assert b"<html" in page.read()
                viewer.send_signal(signal.SIGINT)
                viewer.communicate()
                return 0
    return 1


def gateway(arguments: list[str]) -> int:
    """Have two conversations with the printed key, then send Ctrl-C."""
    with subprocess.Popen([*AGENTRL, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if printed := re.search(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", line):
                for number in (3, 4):
                    ask(f"What is {number}+5?", *printed.groups())
            if "AGENTRL_ADMIN_KEY" in line:
                process.send_signal(signal.SIGINT)
                process.communicate()
                return process.returncode
    return 1


def ask(text: str, base_url: str, key: str) -> None:
    """Ask the gateway."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body, headers)) as answer:
        assert json.loads(answer.read())["choices"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
