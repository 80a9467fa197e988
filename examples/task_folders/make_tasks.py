"""Write a tiny model, task folders in Harbor's format to train it on, and demonstrations.

python examples/task_folders/make_tasks.py --out outputs/task_folders/task --seed 0

OUT/{train,val,test}/NAME/      task folders: write, append, copy, move or delete a file in /app
OUT/sft.jsonl                   demonstrations by a teacher; a quarter of them are correct
OUT/model/                      tokenizer, chat template and weights, in Hugging Face's layout
OUT/task.json                   a summary
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from commands import FORMS, Files, FileTask, Form, Message, draw_task

sys.path.append(str(Path(__file__).parents[1] / "calculator"))
from make_task import write_jsonl, write_model  # model and tokenizer as in the calculator example

NUM_TASKS = {"train": 256, "val": 64, "test": 128}
NUM_DEMONSTRATIONS = 11_200
TEACHER_SHARE_CORRECT = 0.25
VOCAB_SIZE = 1024
SYMBOLS = r"\d|[a-z](?=\.txt)"
"""Digits and file names are separate tokens, so that the model copies them symbol by symbol."""
SETTINGS = """schema_version = "1.4"

[task]
name = "agentrl-examples/{name}"

[verifier]
timeout_sec = 60

[environment]
network_mode = "no-network"
"""
DOCKERFILE = """FROM debian:bookworm-slim
WORKDIR /app
COPY files/ /app/
"""
TEST = """#!/bin/bash
# the files of /app must be those of /tests/expected, and no others
if diff -r /tests/expected /app; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/task_folders/task"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", default="tool_agent", choices=FORMS, help="agent of the demonstrations")
    for name, number in NUM_TASKS.items():
        parser.add_argument(f"--{name}", type=int, default=number, metavar="N", help=f"task folders in OUT/{name}")
    arguments = vars(parser.parse_args())
    out, seed, form = (arguments.pop(name) for name in ("out", "seed", "form"))
    print(json.dumps(make_tasks(out, seed, arguments, form), indent=2))


def make_tasks(
    out: Path, seed: int, num_tasks: dict[str, int] = NUM_TASKS, form_name: str = "tool_agent"
) -> dict[str, object]:
    """Write all files to `out`; they depend only on the other arguments. Return the content of task.json."""
    form = FORMS[form_name]
    rng = random.Random(seed)
    tasks = distinct_tasks(rng)
    for split, number in num_tasks.items():
        for position in range(number):
            name = f"{split}-{position:04d}"
            write_folder(out / split / name, name, next(tasks))
    traces, tools = list(demonstrate(form, rng)), [form.schema.for_template()]
    write_jsonl(out / "sft.jsonl", ({"messages": trace, "tools": tools} for trace in traces))
    sizes = write_model(out / "model", traces, seed, "qwen3", form.schema, vocab_size=VOCAB_SIZE, isolated=SYMBOLS)
    facts = {
        "seed": seed,
        "form": form_name,
        "num_tasks": num_tasks,
        "teacher_share_correct": TEACHER_SHARE_CORRECT,
        **sizes,
    }
    (out / "task.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def distinct_tasks(rng: random.Random) -> Iterator[FileTask]:
    """Endless iterator of tasks without repeated instructions."""
    seen: set[str] = set()
    while True:
        task = draw_task(rng)
        if task.instruction not in seen:
            seen.add(task.instruction)
            yield task


def demonstrate(form: Form, rng: random.Random) -> Iterator[list[Message]]:
    """Demonstrations; a fixed share of them is correct, at random positions."""
    right = set(rng.sample(range(NUM_DEMONSTRATIONS), int(NUM_DEMONSTRATIONS * TEACHER_SHARE_CORRECT)))
    for position in range(NUM_DEMONSTRATIONS):
        task = draw_task(rng)
        yield form.right_trace(task) if position in right else form.wrong_trace(task, rng)


def write_folder(folder: Path, name: str, task: FileTask) -> None:
    """Write one task folder."""
    texts = {
        "task.toml": SETTINGS.format(name=name),
        "instruction.md": task.instruction,  # without a final line break, as in the demonstrations
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": TEST,
        "solution/solve.sh": f"#!/bin/bash\n{task.command}\n",
        **files_in("environment/files", task.before),
        **files_in("tests/expected", task.after),
    }
    for path in ("environment/files", "tests/expected"):  # these folders must exist, even if empty
        (folder / path).mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def files_in(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": f"{content}\n" for name, content in files.items()}


if __name__ == "__main__":
    main()
