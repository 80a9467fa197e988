"""Runs one step of TRL's GRPOTrainer, which logs its completions, and reads our pairs; runs in TRL's interpreter.

python trl_peer.py MODEL OUT PAIRS     ->     JSON: the reward function's inputs, and the rows of the pairs
"""

from __future__ import annotations

import json
import sys

from datasets import Dataset, load_dataset
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

model, out, pairs = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
scored: list[dict[str, object]] = []
QUIET = {"report_to": [], "use_cpu": True, "bf16": False, "disable_tqdm": True, "save_strategy": "no"}


def length(prompts, completions, **_):  # type: ignore[no-untyped-def]  # as TRL calls it
    said = [completion[0]["content"] for completion in completions]
    scored.extend({"prompt": prompt, "said": text} for prompt, text in zip(prompts, said, strict=True))
    return [float(len(text)) for text in said]


def even(completions, **_):  # type: ignore[no-untyped-def]  # likewise; None: it has nothing to say of long ones
    lengths = [len(completion[0]["content"]) for completion in completions]
    return [float(length % 2 == 0) if length < 20 else None for length in lengths]


rows = Dataset.from_list([{"prompt": [{"role": "user", "content": question}]} for question in ("What is 1+1?", "2-1?")])
options = GRPOConfig(
    out, max_steps=1, num_generations=2, per_device_train_batch_size=4, max_completion_length=8, log_completions=True,
    logging_steps=1, num_completions_to_print=0, **QUIET,
)  # fmt: skip
GRPOTrainer(model, [length, even], args=options, train_dataset=rows, processing_class=tokenizer).train()

read = load_dataset("json", data_files=pairs, cache_dir=f"{out}/cache")["train"]
trainer = DPOTrainer(model, args=DPOConfig(out, max_steps=1, **QUIET), train_dataset=read, processing_class=tokenizer)
columns = ("prompt_ids", "chosen_ids", "rejected_ids")
texts = [{name: tokenizer.decode(row[name]) for name in columns} for row in trainer.train_dataset]
trainer.train()
print("\n" + json.dumps({"scored": scored, "pairs": texts, "tools": read[0]["tools"]}))
