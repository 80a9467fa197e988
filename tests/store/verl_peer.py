"""Dumps generations with verl's trainer, and reads our tasks with verl's dataset; runs in verl's interpreter.

python verl_peer.py MODEL OUT TASKS     ->     JSON: the rows that verl would pass to a rollout
"""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import verl
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset

# verl's trainer imports all its training libraries; the one dump function needs none of them
TRAINER = Path(verl.__file__).parent / "trainer/ppo/ray_trainer.py"
found = [node for node in ast.walk(ast.parse(TRAINER.read_text())) if getattr(node, "name", "") == "_write_generations"]
found[0].decorator_list.clear()
theirs: dict[str, object] = {"os": os, "json": json}
exec(compile(ast.Module(found[:1], []), TRAINER, "exec"), theirs)

model, out, tasks = sys.argv[1:]
extra = {"acc": [True, False, True], "pred": ["2", "3", None], "request_id": ["a", "b", "c"]}
theirs["_write_generations"](
    ["q", "r", "q"], ["2\n", "3 \u00e9", "4"], ["2", ["x", 1], "2"], [1.0, 0.0, 0.5], extra, out, 12
)
config = OmegaConf.create({"cache_dir": f"{out}/cache", "max_prompt_length": 512, "filter_overlong_prompts": False})
rows = RLHFDataset(tasks, AutoTokenizer.from_pretrained(model), config)
names = ("raw_prompt", "data_source", "reward_model", "index", "extra_info", "tools_kwargs", "ability")
print("\n" + json.dumps([{name: rows[number][name] for name in names} for number in range(len(rows))]))
