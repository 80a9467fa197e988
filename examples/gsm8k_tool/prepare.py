"""Convert GSM8K to verl's columns: for answers in one turn, or for an agent that checks its result with a tool.

    python examples/gsm8k_tool/prepare.py --tool --out data/gsm8k                # from the hub
    python examples/gsm8k_tool/prepare.py --train train.jsonl --test test.parquet

A source has the columns `question` and `answer`; the last line of an answer is the result, such as `#### 72`.
"""

from __future__ import annotations

import sys
from typing import Any

from agentrl.cli.main import finish
from agentrl.data.fields import FieldError
from agentrl.data.preparation import prepare_splits, preparing_parser
from agentrl.data.rows import Row

TOOL = "calc_gsm8k_reward"
SYSTEM = (
    "Solve the problem step by step. Once you have a result, check it with the tool "
    f"`{TOOL}`; if it is wrong, try again. End with the final answer on a line of its own: #### <answer>"
)
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def main() -> None:
    parser = preparing_parser(__doc__, "data/gsm8k", "openai/gsm8k/main")
    parser.add_argument("--tool", action="store_true", help=f"for an agent with the tool {TOOL}")
    arguments = parser.parse_args()
    prepare_splits(arguments, tool_task if arguments.tool else plain_task)


def plain_task(row: Row, split: str, index: int) -> dict[str, Any]:  # Any: verl's nested columns
    """Convert one question for a model that answers in one turn, without tools."""
    question, answer, ground_truth = read(row)
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"split": split, "index": index, "question": question, "answer": answer},
    }


def tool_task(row: Row, split: str, index: int) -> dict[str, object]:
    """Convert one question for a tool agent. The tool gets the ground truth; the model does not see it."""
    question, _, ground_truth = read(row)
    plain = plain_task(row, split, index)
    told = {"need_tools_kwargs": True, "tools_kwargs": {TOOL: {"create_kwargs": {"ground_truth": ground_truth}}}}
    return plain | {
        "agent_name": "tool_agent",
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        "extra_info": plain["extra_info"] | told,
    }


def read(row: Row) -> tuple[str, str, str]:
    """Return the question, the worked answer and the final number."""
    question, answer = str(row.get("question", "")), str(row.get("answer", ""))
    _, marker, result = answer.rpartition("####")
    if not (question and marker):
        raise FieldError("expected a `question`, and an `answer` that ends in '#### <number>'")
    return question, answer, result.strip().replace(",", "")


if __name__ == "__main__":
    sys.exit(finish(main))
