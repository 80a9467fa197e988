"""`python -m agentrl.trainer.main_generation a.b=c …`: `agentrl generate --verl` under verl's module name.

An entry point (docs/design.md, section 2). verl's module name requires this location. Of agentrl's modules, only
`main_generation_server` imports it.
"""

import sys

from agentrl.cli.main import main


def generate() -> int:
    """Run the command line and return its exit status."""
    return main(["generate", "--verl", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(generate())
