#!/bin/sh
# Train with a few flags: ./train.sh --model PATH --train train.json --rollout_n 8 [any.key=value]; --help lists them.
root=$(cd "$(dirname "$0")" && pwd)
[ -x "$root/.venv/bin/python" ] && default="$root/.venv/bin/python" || default=python3
python="${PYTHON:-$default}"
"$python" -c 'from importlib.util import find_spec
raise SystemExit(None in map(find_spec, ("hydra", "pydantic", "torch", "transformers")))' 2>/dev/null || {
    echo "agentrl: error: '$python' does not have what agentrl needs: activate its environment, or set PYTHON" >&2
    exit 2
}
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m agentrl.cli.verl.short_form "$@"
