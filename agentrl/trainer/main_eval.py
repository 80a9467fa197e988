"""`python -m agentrl.trainer.main_eval a.b=c …`: `agentrl eval --responses` under verl's module name.

An entry point (docs/design.md, section 2). verl's module name requires this location; no module imports it.
"""

import sys

from agentrl.cli.eval.responses import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
