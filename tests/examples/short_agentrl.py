"""`agentrl` for the documentation: training takes two steps and validates on 8 rows; the viewer serves one page."""

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
