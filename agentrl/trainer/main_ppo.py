"""`python -m agentrl.trainer.main_ppo a.b=c …`: `agentrl train --verl` under verl's module name.

An entry point (docs/design.md, section 2). verl's module name requires this location; no module imports it.
"""

import sys

from agentrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "--verl", *sys.argv[1:]]))
