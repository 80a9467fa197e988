"""`python -m agentrl.trainer.main_generation_server a.b=c …`: `main_generation` under its newer verl name.

An entry point (docs/design.md, section 2). verl's module name requires this location; no module imports it.
"""

import sys

from agentrl.trainer.main_generation import generate

if __name__ == "__main__":
    sys.exit(generate())
