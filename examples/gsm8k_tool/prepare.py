"""GSM8K as tasks for an agent with a tool, in verl's columns.

    python examples/gsm8k_tool/prepare.py --out data/gsm8k                                  # from the hub
    python examples/gsm8k_tool/prepare.py --out data/gsm8k --train train.jsonl --test test.parquet

A source has the columns `question` and `answer`; the answer's last line is `#### 72`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow
import pyarrow.parquet

from agentrl.data.rows import Row, open_rows
from agentrl.errors import DataError

TOOL = "calc_gsm8k_reward"
SYSTEM = (
    "Solve the problem step by step. Once you have a result, check it with the tool "
    f"`{TOOL}`; if it is wrong, try again. End with the final answer on a line of its own: #### <answer>"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/gsm8k"))
    parser.add_argument("--train", default="openai/gsm8k/main:train", help="file, or dataset on the hub")
    parser.add_argument("--test", default="openai/gsm8k/main:test", help="file, or dataset on the hub")
    arguments = parser.parse_args()
    for split in ("train", "test"):
        path = prepare(getattr(arguments, split), split, arguments.out)
        print(f"{path}: {pyarrow.parquet.read_metadata(path).num_rows} tasks")


def prepare(source: str, split: str, out: Path) -> Path:
    """Write `out`/`split`.parquet from a file or a dataset on the hub; returns its path."""
    rows = open_rows(source)
    tasks = [task(row, rows.where(index), split, index) for index, row in enumerate(rows.scan(len(rows)))]
    out.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(tasks), out / f"{split}.parquet")
    return out / f"{split}.parquet"


def task(row: Row, where: str, split: str, index: int) -> dict[str, object]:
    """One row in verl's columns; the tool is told the ground truth, the model is not."""
    question, answer = str(row.get("question", "")), str(row.get("answer", ""))
    _, marker, result = answer.rpartition("####")
    if not (question and marker):
        raise DataError(f"{where}: expected a `question`, and an `answer` that ends in '#### <number>'")
    ground_truth = result.strip().replace(",", "")
    return {
        "data_source": "openai/gsm8k",
        "agent_name": "tool_agent",
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {
            "split": split,
            "index": index,
            "question": question,
            "answer": answer,
            "need_tools_kwargs": True,
            "tools_kwargs": {TOOL: {"create_kwargs": {"ground_truth": ground_truth}}},
        },
    }


if __name__ == "__main__":
    main()
