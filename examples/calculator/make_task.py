"""Write the calculator task: a tiny model with random weights, demonstrations, and tasks to train and test on.

python examples/calculator/make_task.py --out outputs/quickstart/task --seed 0

OUT/model/                      tokenizer, chat template and weights, in Hugging Face's layout
OUT/sft.jsonl                   demonstrations by a teacher; a quarter of them are correct
OUT/{train,val,test}.jsonl      prompts with their ground truth; no expression occurs in two files
OUT/task.json                   a summary: seed, numbers of rows, share of correct demonstrations, sizes
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from expressions import Calls, Message, Problem, draw_problem, right_trace, wrong_trace
from reward import compute_score
from tool import calculator

from agentrl.tools.function import as_tool
from agentrl.tools.sandbox_tools import PYTHON
from agentrl.types.messages import ToolSchema

DATA_SOURCE = "calculator"
NUM_ROWS = {"test": 512, "val": 256, "train": 2048, "sft": 11_200}
TEACHER_SHARE_CORRECT = 0.25
NUM_TOKENIZER_TEXTS = 2000
FOR_LONG_TEMPLATES = {"vocab_size": 8192, "isolated": r"\d|[-+*()]"}
"""Options of the tokenizer for long chat templates: all fixed text of the prompts is merged into few tokens.

Line breaks are merged, too. `vocab_size` is only an upper limit: the training of the tokenizer ends far below it, when
no pair of tokens is left to merge."""
KINDS = ["qwen3", "llama", "qwen3_moe", "deepseek_v3"]
CALLS = {"calculator": Calls(), "python": Calls("python", "code", computes_all=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/quickstart/task"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", default="qwen3", choices=KINDS, help="kind of model")
    parser.add_argument("--tool", default="calculator", choices=[*CALLS], help="tool that the demonstrations call")
    parser.add_argument("--template", type=Path, metavar="FILE", help="chat template of the model (default: ChatML)")
    print(json.dumps(make_task(**vars(parser.parse_args())), indent=2))


def make_task(
    out: Path, seed: int, family: str = "qwen3", tool: str = "calculator", template: Path | None = None
) -> dict[str, object]:
    """Write all files to `out`; they depend only on the other arguments. Return the content of task.json.

    Args:
        template: file with the chat template; None: the template of this example.
    """
    options = {"template": template.read_text(encoding="utf-8"), **FOR_LONG_TEMPLATES} if template else {}
    rng = random.Random(seed)
    problems = distinct_problems(rng)
    splits = {name: [next(problems) for _ in range(num_rows)] for name, num_rows in NUM_ROWS.items()}
    demonstrations = demonstrate(splits.pop("sft"), CALLS[tool], rng)
    out.mkdir(parents=True, exist_ok=True)
    write_jsonl(out / "sft.jsonl", ({"messages": trace} for _, trace in demonstrations))
    for name, split in splits.items():
        write_jsonl(out / f"{name}.jsonl", map(task_row, split))
    facts = {
        "seed": seed,
        "num_rows": NUM_ROWS,
        "teacher_share_correct": sum(is_right(*pair) for pair in demonstrations) / len(demonstrations),
        **write_model(out / "model", [trace for _, trace in demonstrations], seed, family, schema_of(tool), **options),
    }
    (out / "task.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def distinct_problems(rng: random.Random) -> Iterator[Problem]:
    """Endless iterator of problems without repeated expressions."""
    seen: set[str] = set()
    while True:
        problem = draw_problem(rng)
        if problem.text not in seen:
            seen.add(problem.text)
            yield problem


def demonstrate(problems: Sequence[Problem], calls: Calls, rng: random.Random) -> list[tuple[Problem, list[Message]]]:
    """One demonstration per problem; a fixed share of them is correct, at random positions."""
    num_right = int(len(problems) * TEACHER_SHARE_CORRECT)
    right = set(rng.sample(range(len(problems)), num_right))
    return [
        (problem, right_trace(problem, calls) if index in right else truly_wrong_trace(problem, calls, rng))
        for index, problem in enumerate(problems)
    ]


def truly_wrong_trace(problem: Problem, calls: Calls, rng: random.Random) -> list[Message]:
    """Draw demonstrations until the answer is wrong.

    A mistake can give the right answer by chance: in 90-(20+25), the result of the first call is also the answer.
    """
    while is_right(problem, trace := wrong_trace(problem, calls, rng)):
        pass
    return trace


def is_right(problem: Problem, trace: Sequence[Message]) -> bool:
    """Return whether the reward of this trace is 1."""
    return compute_score(DATA_SOURCE, "", problem.answer, {"last_turn": trace[-1]["content"]}) == 1


def task_row(problem: Problem) -> dict[str, object]:
    return {"data_source": DATA_SOURCE, "prompt": problem.prompt, "ground_truth": problem.answer}


def schema_of(tool: str) -> ToolSchema:
    return as_tool(calculator).schema if tool == "calculator" else PYTHON.tool({"name": tool}, {}).schema


def write_jsonl(path: Path, rows: Iterable[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_model(
    path: Path, traces: Sequence[list[Message]], seed: int, family: str, schema: ToolSchema, **options: object
) -> dict[str, object]:
    """Train the tokenizer on rendered traces, draw the weights and save both.

    Return the sizes of the model, the vocabulary, a prompt and a trace, for task.json.

    Args:
        options: for `make_tokenizer`.
    """
    from tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS, make_model, make_tokenizer  # imports torch: slow
    from transformers.utils.chat_template_utils import render_jinja_template
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tools = [schema.for_template()]
    template = options.get("template", CHAT_TEMPLATE)
    texts, _ = render_jinja_template(
        traces[:NUM_TOKENIZER_TEXTS], tools=tools, chat_template=template, **SPECIAL_TOKENS
    )
    tokenizer = make_tokenizer(texts, **options)
    model = make_model(tokenizer, seed, family)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    prompt = tokenizer.apply_chat_template(traces[0][:2], tools=tools, add_generation_prompt=True, return_dict=False)
    return {
        "num_parameters": model.num_parameters(),
        "vocab_size": len(tokenizer),
        "prompt_tokens": len(prompt),
        "trace_tokens": sum(map(len, map(tokenizer.encode, texts))) / len(texts),
    }


if __name__ == "__main__":
    main()
