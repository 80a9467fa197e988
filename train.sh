#!/bin/sh
# Train with a few flags: ./train.sh --model PATH --train train.json --rollout_n 8 [any.key=value]; --help lists them.
root=$(cd "$(dirname "$0")" && pwd)
[ -x "$root/.venv/bin/python" ] && default="$root/.venv/bin/python" || default=python3
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-$default}" -m agentrl.cli.short_form "$@"
