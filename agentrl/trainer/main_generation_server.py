"""`python -m agentrl.trainer.main_generation_server a.b=c …`: the same as `main_generation`, by its newer name.

A door (design, section 2): it stands beside the loop only for its name, and nothing imports it.
"""

import sys

from agentrl.trainer.main_generation import generate

if __name__ == "__main__":
    sys.exit(generate())
