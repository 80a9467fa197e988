"""`python -m agentrl.trainer.main_generation a.b=c …`: `agentrl generate --verl`, where users of verl look for it.

A door (design, section 2): it stands beside the loop only for its name, and only its newer name imports it.
"""

import sys

from agentrl.cli.main import main


def generate() -> int:
    """The exit status of the command line it was started with."""
    return main(["generate", "--verl", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(generate())
