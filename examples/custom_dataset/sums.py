"""A custom dataset: rows are generated on request. Each "file name" is a number of rows to generate.

    agentrl train +experiment=calculator data.custom_cls.path=examples/custom_dataset/sums.py \
        data.custom_cls.name=Sums 'data.train_files=["2048"]' 'data.val_files=["64"]'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Sums:
    """Sums and differences of numbers below a hundred. Row i is the same in datasets of all lengths."""

    def __init__(self, data_files: Sequence[str]) -> None:
        self.num_rows = sum(map(int, data_files))

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: int) -> Mapping[str, object]:
        first, second, third = 10 + row * 37 % 89, 10 + row * 61 % 83, 10 + row * 53 % 79
        question = [
            {"role": "system", "content": "You are a calculator agent."},
            {"role": "user", "content": f"What is ({first}+{second})-{third}?"},
        ]
        return {"prompt": question, "ground_truth": str(first + second - third), "data_source": "calculator"}
