r"""Convert Geometry3K to verl's columns, including the images.

    python examples/data_preparation/geo3k.py --out data/geo3k                       # from the hub
    python examples/data_preparation/geo3k.py --train train.parquet --test test.parquet

A source has the columns `problem` (with `<image>` at the place of each image), `answer` and `images`. Frameworks that
read verl's columns can use the written files. agentrl runs rollouts with images, but does not train on them yet.
"""

from __future__ import annotations

import sys

from agentrl.cli.main import finish
from agentrl.data.fields import FieldError
from agentrl.data.preparation import prepare_splits, preparing_parser
from agentrl.data.rows import Row

DATASET = "hiyouga/geometry3k"
INSTRUCTION = (
    r"You FIRST think about the reasoning process as an internal monologue and then provide the final answer. "
    r"The reasoning process MUST BE enclosed within <think> </think> tags. "
    r"The final answer MUST BE put in \boxed{}."
)


def main() -> None:
    prepare_splits(preparing_parser(__doc__, "data/geo3k", DATASET).parse_args(), task, kept="images")


def task(row: Row, split: str, index: int) -> dict[str, object]:
    """Convert one problem, without its images: `prepare_splits` copies the images unchanged."""
    problem, answer = str(row.get("problem", "")), str(row.get("answer", ""))
    if not (problem and answer):
        raise FieldError("expected a `problem` and an `answer`")
    return {
        "data_source": DATASET,
        "prompt": [{"role": "user", "content": f"{problem} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": split, "index": index, "question": problem, "answer": answer},
    }


if __name__ == "__main__":
    sys.exit(finish(main))
