"""Measure the speed of `data.filter_overlong_prompts` on one thread and on several threads.

    python benchmarks/filter_prompts.py --rows 50000 --threads 2

The tokenizer is a byte-level BPE of 8,000 tokens, trained on the documentation. The prompts consist of words
from the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig
from agentrl.data.prompt_length import prompt_lengths
from agentrl.data.tasks import TaskTable, load_tasks
from agentrl.rollouts.row_check import RowCheck
from agentrl.tools.toolbox import load_toolbox
from agentrl.types.task import Task

DOCS = Path(__file__).parents[1] / "docs"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, alphabet = ["<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    wrapped.chat_template = TEMPLATE
    return wrapped


def make_rows(path: Path, words: list[str], num_rows: int) -> TaskTable:
    """Write `num_rows` prompts of 30 to 200 words to `path`, and return them as tasks."""
    choose = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(num_rows):
            file.write(json.dumps({"prompt": " ".join(choose.choices(words, k=choose.randint(30, 200)))}) + "\n")
    return load_tasks([str(path)], RunConfig(model={"path": "none"}).data)


def measure(num_rows: int, num_threads: int, repeats: int) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")]
    config = RunConfig(model={"path": "none"})
    tokenizer = make_tokenizer(texts)
    with tempfile.TemporaryDirectory() as folder:
        tasks = make_rows(Path(folder) / "rows.jsonl", " ".join(texts).split(), num_rows)

        def timed(threads: int) -> tuple[float, list[int]]:
            rows = RowCheck(ChatFormat(tokenizer), load_toolbox(config.rollout.multi_turn), config, None)

            def length_of(task: Task) -> int:
                return rows.prompt_length(task)

            start = time.perf_counter()
            lengths = prompt_lengths(tasks, length_of, threads)
            return time.perf_counter() - start, lengths

        best = {1: float("inf"), num_threads: float("inf")}
        for _ in range(repeats):
            (one_s, one), (several_s, several) = timed(1), timed(num_threads)
            assert one == several
            best = {1: min(best[1], one_s), num_threads: min(best[num_threads], several_s)}
    print(f"{num_rows:,} prompts of {sum(one) / num_rows:.0f} tokens, the best of {repeats}:")
    for threads, seconds in best.items():
        print(f"{threads} threads: {seconds:.2f} s, {num_rows / seconds:,.0f} prompts/s, {best[1] / seconds:.2f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    measure(options.rows, options.threads, options.repeats)
