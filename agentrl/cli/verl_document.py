"""docs/from-verl.md, written from the table: `python -m agentrl.cli.verl_document > docs/from-verl.md`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentrl.cli.short_form import SHORT
from agentrl.compat.verl_keys.rows import UNSET, Fixed, Hint, Mapped
from agentrl.compat.verl_keys.table import ROWS

_OPENING = """\
# Coming from verl

<!-- Written by `python -m agentrl.cli.verl_document > docs/from-verl.md` from its table; do not edit. -->

Type what you typed, under another name:

```sh
python3 -m agentrl.trainer.main_ppo data.train_files=train.parquet data.val_files=test.parquet \\
    data.train_batch_size=16 actor_rollout_ref.model.path=MODEL actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.rollout.n=8 algorithm.adv_estimator=grpo trainer.total_epochs=3
```

`agentrl train --verl …` is the same, `agentrl eval --verl …` rolls out on `data.val_files` only, and
`--config-path`, `--config-name` read a YAML file that builds on `ppo_trainer`. A key of agentrl's own
(`agentrl config` lists them) may stand among verl's where verl has none of that name. The run's `config.yaml` holds
what came of it, in agentrl's keys.

Every key falls in one of three classes: it is **mapped**; or it sizes verl's own parts and **has no meaning here**,
which is said once, on stderr; or it is **refused** with what to say instead, because ignoring it could change numbers.

## What differs on purpose

- A group of one, or of equal rewards, has advantage 0; verl trains a group of one on its raw score. `rollout.n` is 1 by
  default, so set it.
- Ratios are taken to the probabilities the engine sampled with; verl computes them again by default.
- `solution_str` holds what the model wrote; verl's holds the text of tools too (`reward.include_tool_text=true`).
- A prompt longer than `data.max_prompt_length` is refused, left out, or cut inside its last user message
  (`data.truncation=left|middle|right`). verl cuts the rendered prompt, so that `left` loses system message and tools.
  A prompt is measured as its row's agent loop puts it, with the tools that the row is offered.
- A rollout of several trajectories counts once in its group.
- Rows that fill no last batch of an epoch begin the next one; verl leaves them out. With fewer rows than
  `data.train_batch_size` a step draws some more than once, which is said at the start; verl does not start.
- `data.dataset_weights` (a weight a train file) draws files in that proportion, in every stretch of draws; within a
  file every row comes once before any comes again. An epoch stays as many draws as there are rows.

## Rows

verl's columns are read as they are: `prompt`, `data_source`, `agent_name`, `reward_model.ground_truth`, `extra_info`
with `tools_kwargs`, `interaction_kwargs` and `tool_selection`. Beside them:

- `prompts` stands in for `prompt`: text, a list of messages, or a list of one text.
- `reward_model.test_cases` reaches the reward as `extra_info["test_cases"]`, and as the ground truth where there is no
  other.
- `tool_config`, a column or a key of `extra_info`, holds for the rollouts of its row: `available_tools` (those that are
  offered, as `tool_selection`), `tool_format` (how calls are written, in place of `multi_turn.format`),
  `max_tool_calls`, and `timeout` (seconds a call, in place of the tool's own).
- A tool, agent loop, interaction, tool format or data source that is not there is refused at the start, with file, row
  and the nearest name; so are rows with images, videos or audio.
"""

_SHORT = """\
## The short form

```sh
./train.sh --model MODEL --train train.json --rollout_n 8 --epochs 20 --reward_func ./my_reward.py --lr 5e-7 \\
    --kl_coef 0.01 --n_gpus 1 [any.key=value]
```

`train.json` may be a list of `{"prompt": …, "ground_truth": …, "data_source": …}`. Without `--train`, a
`train.parquet`, `train.jsonl` or `train.json` of the folder is taken. A flag stands for a verl key, an environment
variable for the flag; a flag wins over the environment, a key over both. GRPO; each step is one update.
"""


def document() -> str:
    """The whole page."""
    return "\n".join([_OPENING, *_mapped(), *_hints(), *_refused(), _SHORT, *_short_form()])


def _mapped() -> Iterator[str]:
    yield "## Mapped\n\nverl's defaults are applied where the table names one; `null` leaves agentrl's.\n"
    rows = [row for row in ROWS if isinstance(row, Mapped)]
    yield from _table(
        ("verl", "agentrl", "verl's default", "note"),
        [(_code(row.key), ", ".join(map(_code, row.names)), _default(row), row.note) for row in rows],
    )


def _hints() -> Iterator[str]:
    yield "## No meaning here\n\n`x.*` is every key under `x` that is not named elsewhere.\n"
    yield from _table(("verl", "why"), [(_code(row.key), row.why) for row in ROWS if isinstance(row, Hint)])


def _refused() -> Iterator[str]:
    yield "## Refused, but for these values\n"
    rows = [row for row in ROWS if isinstance(row, Fixed)]
    yield from _table(
        ("verl", "allowed", "instead"),
        [(_code(row.key), ", ".join(_code(_value(value)) for value in row.allowed), row.instead) for row in rows],
    )


def _short_form() -> Iterator[str]:
    yield from _table(
        ("flag", "environment", "verl", "default"),
        [
            (
                _code(f"--{short.flag}"),
                _code(short.variable) if short.variable else "",
                _code(short.key),
                "" if short.default is None else _code(_value(short.default)),
            )
            for short in SHORT
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""


def _default(row: Mapped) -> str:
    return "" if row.default is UNSET else _code(_value(row.default))


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return {"None": "null", "": '""'}.get(str(value), str(value))


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    print(document(), end="")
