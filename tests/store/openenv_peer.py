"""Reads our traces with OpenEnv's own class, and writes some of its own; runs in OpenEnv's interpreter.

python openenv_peer.py OURS THEIRS     ->     JSON: our traces, as the class read them
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from openenv.core.harness.training import TrainingTrace, TrainingTurn

ours, theirs = map(Path, sys.argv[1:])
read = [TrainingTrace.model_validate_json(line) for line in ours.read_text().splitlines()]


def turn(name: str, prompt: list[int], completion: list[int], mask: list[int]) -> TrainingTurn:
    return TrainingTurn(
        node_id=name,
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        per_token_logps=[-0.25 * each for each in completion],
        loss_mask=[0] * len(prompt) + mask,
        request={"messages": [{"role": "user", "content": "1+1?"}]},
        response={"choices": [{"message": {"role": "assistant", "content": "2", "tool_calls": None}}]},
        metadata={"sampling_params": {"temperature": 0.5}},
    )


TURNS = [
    turn("a", [1, 2], [3, 4], [1, 0]),  # a token that is not trained
    turn("b", [1, 2, 3, 4, 5], [6], [1]),  # continues a
    turn("c", [1, 2, 3, 4, 9], [7], [1]),  # a branch
    turn("d", [8], [3], [0]),  # context only
]
rewarded = json.dumps({"trace": TrainingTrace(turns=TURNS).model_dump(), "reward": 0.5})
theirs.write_text(f"{rewarded}\n{TrainingTrace(turns=TURNS[:1]).model_dump_json()}\n")
print(json.dumps([trace.model_dump() for trace in read]))
