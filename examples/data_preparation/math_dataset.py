r"""Convert MATH to verl's columns: competition problems whose solutions end in \boxed{answer}.

    python examples/data_preparation/math_dataset.py --out data/math                 # from the hub
    python examples/data_preparation/math_dataset.py --train train.jsonl --test test.parquet

A source has the columns `problem` and `solution`; the reward gets `level` and `type` in `extra_info`.
"""

from __future__ import annotations

import sys

from agentrl.cli.main import finish
from agentrl.data.fields import FieldError
from agentrl.data.preparation import prepare_splits, preparing_parser
from agentrl.data.rows import Row
from agentrl.utils.answers import boxed

DATASET = "DigitalLearningGmbH/MATH-lighteval"
INSTRUCTION = r"Let's think step by step and output the final answer within \boxed{}."


def main() -> None:
    prepare_splits(preparing_parser(__doc__, "data/math", DATASET).parse_args(), task)


def task(row: Row, split: str, index: int) -> dict[str, object]:
    """Convert one problem; the ground truth is the content of the solution's last box."""
    problem, ground_truth = str(row.get("problem", "")), boxed(str(row.get("solution", "")))
    if not (problem and ground_truth):
        raise FieldError(r"expected a `problem`, and a `solution` with \boxed{answer}")
    return {
        "data_source": DATASET,
        "prompt": [{"role": "user", "content": f"{problem} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"split": split, "index": index, "level": row.get("level"), "type": row.get("type")},
    }


if __name__ == "__main__":
    sys.exit(finish(main))
