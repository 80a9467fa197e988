"""A tiny command-line run with one bad input at a time: four rows, two rollouts each, one step.

Rollouts are scripted unless a test requests the model: they call a tool, then answer "done".
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from agentrl.cli.main import finish, main
from agentrl.errors import AgentRLError

CALCULATOR = Path(__file__).parents[2] / "examples/calculator"
ROWS = [{"prompt": f"What is {a}+{a}?", "ground_truth": str(2 * a), "data_source": "doubles"} for a in range(4)]
PREFIX = "agentrl: error: "


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A model with random weights, a tokenizer, and a chat template that supports tools."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CALCULATOR))
        from tiny_model import make_model, make_tokenizer
    tokenizer = make_tokenizer(["<|im_start|>user\nWhat is 2+3?<|im_end|>\n"] * 4)
    folder = tmp_path_factory.mktemp("model")
    make_model(tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Bad:
    """The folder of one test, and its run."""

    def __init__(self, folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.model, self._capsys = folder, model, capsys
        self.rows(ROWS)
        self.write("reward.py", "def compute_score(solution_str):\n    return float('done' in solution_str)\n")
        self.write("script.py", "def reply(context):\n    return 'done'\n")

    def write(self, name: str, text: str) -> Path:
        """Write a file with this text, dedented."""
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def rows(self, rows: list[object]) -> Path:
        """The training rows."""
        return self.write("train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def calls(self, name: str, **arguments: object) -> None:
        """Make rollouts call a tool in their first turn."""
        call = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        text = f"def reply(context):\n    return 'done' if '<tool_response>' in context else {call!r}\n"
        self.write("script.py", text)

    def options(self, *overrides: str) -> list[str]:
        """The complete command line; later words override earlier ones."""
        return [
            f"model.path={self.model}",
            f"data.train_files={self.folder}/train.jsonl",
            *("data.train_batch_size=4", "data.max_prompt_length=256", "data.max_response_length=128"),
            *("rollout.n=2", "rollout.engine=scripted", f"rollout.script_path={self.folder}/script.py:reply"),
            f"reward.custom_reward_function.path={self.folder}/reward.py",
            *("trainer.total_training_steps=1", "trainer.logger=[jsonl]"),
            f"trainer.default_local_dir={self.folder}/run",
            "trainer.resume_mode=auto",
            *overrides,
        ]

    def refused(self, *overrides: str, command: str = "train") -> str:
        """The one line that refuses the command; `--traceback` shows where the error was raised."""
        with pytest.raises(AgentRLError) as shown:
            main([command, "--traceback", *self.options(*overrides)])

        def as_it_was() -> None:
            raise shown.value

        assert finish(as_it_was) == 2  # exit status of a command without --traceback
        (line,) = self._capsys.readouterr().err.splitlines()
        assert line.startswith(PREFIX)
        return line.removeprefix(PREFIX)

    def goes_on(self, *overrides: str) -> dict[str, float]:
        """The metrics of the one step, for input that must not stop the run."""
        assert main(["train", *self.options(*overrides)]) == 0
        (row,) = (self.folder / "run/metrics.jsonl").read_text().splitlines()
        return json.loads(row)


@pytest.fixture
def bad(tmp_path, model, capsys) -> Bad:
    return Bad(tmp_path, model, capsys)
