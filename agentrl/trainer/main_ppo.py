"""`python -m agentrl.trainer.main_ppo a.b=c …`: `agentrl train --verl` under verl's module name.

An entry point (design, section 2): it is in this package only for its name, and nothing imports it.
"""

import sys

from agentrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "--verl", *sys.argv[1:]]))
