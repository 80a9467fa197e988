"""Write the search task: documents, a tiny model with random weights, demonstrations, and questions.

python examples/search_qa/make_search_task.py --out outputs/search_qa/task --seed 0

OUT/corpus.jsonl                documents: two for each town
OUT/model/                      tokenizer, chat template and weights, in Hugging Face's layout
OUT/sft.jsonl                   demonstrations by a teacher; a quarter of them are correct
OUT/{train,val,test}.jsonl      questions with their answers; no two questions are about the same town
OUT/task.json                   a summary
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from towns import NAME_PARTS, Question, Search, draw_question, draw_towns, right_trace, wrong_trace

from agentrl.tools.search.passages import search_schema, shown
from agentrl.tools.search.tool import search_tool

sys.path.append(str(Path(__file__).parents[1] / "calculator"))
from make_task import write_jsonl, write_model  # model and tokenizer as in the calculator example

DATA_SOURCE = "search_qa"
NUM_TOWNS = {"test": 512, "val": 256, "train": 2048, "sft": 11_200}
TEACHER_SHARE_CORRECT = 0.25
TOP_K = 1
VOCAB_SIZE = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/search_qa/task"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(json.dumps(make_search_task(arguments.out, arguments.seed), indent=2))


def make_search_task(out: Path, seed: int) -> dict[str, object]:
    """Write all files to `out`; they depend only on the seed. Return the content of task.json."""
    rng = random.Random(seed)
    towns = draw_towns(rng, sum(NUM_TOWNS.values()))
    out.mkdir(parents=True, exist_ok=True)
    write_jsonl(out / "corpus.jsonl", (document for town in towns for document in town.documents))
    splits = {name: [draw_question(rng, towns.pop()) for _ in range(number)] for name, number in NUM_TOWNS.items()}
    traces = demonstrate(splits.pop("sft"), searcher(out / "corpus.jsonl"), rng)
    write_jsonl(out / "sft.jsonl", ({"messages": trace} for trace in traces))
    for name, questions in splits.items():
        write_jsonl(out / f"{name}.jsonl", map(task_row, questions))
    options = {"vocab_size": VOCAB_SIZE, "isolated": NAME_PARTS}
    sizes = write_model(out / "model", traces, seed, "qwen3", search_schema(), **options)
    facts = {"seed": seed, "num_rows": NUM_TOWNS, "teacher_share_correct": TEACHER_SHARE_CORRECT, **sizes}
    (out / "task.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def searcher(corpus: Path) -> Search:
    """The search tool of the task, as a function."""
    index = search_tool({"documents": str(corpus)}, corpus.parent).index
    return lambda query: shown([[index.passage(hit.number) for hit in index.search(query, TOP_K)]])


def demonstrate(questions: Sequence[Question], search: Search, rng: random.Random) -> list[list[dict[str, object]]]:
    """One demonstration per question; a fixed share of them is correct, at random positions."""
    right = set(rng.sample(range(len(questions)), int(len(questions) * TEACHER_SHARE_CORRECT)))
    return [
        right_trace(question, search) if index in right else wrong_trace(question, search, rng)
        for index, question in enumerate(questions)
    ]


def task_row(question: Question) -> dict[str, object]:
    return {"data_source": DATA_SOURCE, "prompt": question.prompt, "ground_truth": question.answer}


if __name__ == "__main__":
    main()
