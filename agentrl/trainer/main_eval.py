"""`python -m agentrl.trainer.main_eval a.b=c …`: `agentrl eval --responses`, where users of verl look for it.

A door (design, section 2): it stands beside the loop only for its name, and nothing imports it.
"""

import sys

from agentrl.cli.eval_responses import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
