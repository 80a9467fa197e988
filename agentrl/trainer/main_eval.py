"""`python -m agentrl.trainer.main_eval a.b=c …`: `agentrl eval --responses` under verl's module name.

An entry point (design, section 2): it is in this package only for its name, and nothing imports it.
"""

import sys

from agentrl.cli.eval.responses import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
