"""Generator of docs/from-verl.md: `python -m agentrl.cli.verl.document > docs/from-verl.md`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.cli.verl.short_form import SHORT
from agentrl.compat.verl.keys.evaluation import EVALUATION
from agentrl.compat.verl.keys.generation import GENERATION, SERVER
from agentrl.compat.verl.keys.rows import UNSET, Fixed, Hint, Mapped, Row
from agentrl.compat.verl.keys.table import PPO

_OPENING = """\
# Coming from verl

<!-- Written by `python -m agentrl.cli.verl.document > docs/from-verl.md` from its table; do not edit. -->

Type what you typed, under another name:

```sh
python3 -m agentrl.trainer.main_ppo data.train_files=train.parquet data.val_files=test.parquet \\
    data.train_batch_size=16 actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 algorithm.adv_estimator=grpo trainer.total_epochs=3
```

`agentrl train --verl …` is the same, `agentrl eval --verl …` rolls out on `data.val_files` only, and
`--config-path`, `--config-name` read a YAML file that builds on `ppo_trainer`. A key of agentrl's own
(`agentrl config` lists them) may stand among verl's where verl has none of that name. The run's `config.yaml` holds
what came of it, in agentrl's keys.

An estimator and a loss become `algorithm.name` where one name stands for both: `adv_estimator=gae` is `gae` with a
critic, `adv_estimator=grpo` with `policy_loss.loss_mode=gspo` is `gspo`; verl's defaults (clips of 0.2, `token-mean`)
hold for them. Whoever says `algorithm.name` gets agentrl's ([algorithms.md](algorithms.md)).

As in verl, `trainer.resume_mode` is `auto`: the same command with the same `trainer.default_local_dir` resumes the run.
Without `trainer.default_local_dir` each command starts a new run in `outputs/<experiment_name>/<date>-<time>`.
`agentrl train --resume RUN` resumes any run, also one that was started here; it takes agentrl's keys.

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
- Groups of equal rewards stay at 0 where verl whitens them, and more that is listed in [algorithms.md](algorithms.md).
- A reward that hangs or cannot be reached gives no score, and its rollout is no part of its group; in verl it gives 0.
  Several scorers accept more answers than verl's ([rewards.md](rewards.md)).
- With dynamic sampling every group that differs is trained on; tasks are drawn until a step has its groups.
- `data.custom_cls` names a class whose rows are those of a file; a reward manager of your own is a class called with
  (reward, config) ([extending.md](extending.md)).
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
  and the nearest name; so are rows with videos or audio. Images take part in rollouts ([multimodal.md](multimodal.md)).
"""

_SHORT = """\
## The short form

```sh
./train.sh --model Qwen/Qwen3-0.6B --train train.json --rollout_n 8 --epochs 2 --reward_func ./my_reward.py \\
    --lr 5e-7 --kl_coef 0.01 --n_gpus 1
```

Any `key=value` may follow.
`train.json` may be a list of `{"prompt": …, "ground_truth": …, "data_source": …}`. Without `--train`, a
`train.parquet`, `train.jsonl` or `train.json` of the folder is taken. A flag stands for a verl key, an environment
variable for the flag; a flag wins over the environment, a key over both. GRPO; each step is one update.
"""


_GENERATION = """\
## Generating and scoring responses

```sh
python3 -m agentrl.trainer.main_generation data.path=test.parquet data.n_samples=4 data.output_path=out.parquet \\
    model.path=Qwen/Qwen3-0.6B rollout.temperature=1.0 rollout.response_length=1024
python3 -m agentrl.trainer.main_eval data.path=out.parquet custom_reward_function.path=reward.py
```

The first is `agentrl generate --verl`, and `main_generation_server` is the same; a command that says `data.train_files`
or `actor_rollout_ref.*` is read as the server's. Beside `out.parquet` the rollouts lie with their tokens in `out/`, a
run's folder; the same command resumes a run that was stopped. Agents, tools and a reward work as in training:
agentrl's keys for them may stand in the command. Figures of `main_eval` have intervals, and `out.eval.json` holds all
of them ([evaluate.md](evaluate.md)).

### main_generation

What is not named is as in training, where it stands under `actor_rollout_ref`.
"""

_EVALUATION = """\
### main_eval

A key that begins with two dashes is a flag of `agentrl eval`.
"""


def document() -> str:
    """Return the page."""
    return "\n".join([_OPENING, *_classes(PPO.rows, "##"), *_generation(), _SHORT, *_short_form()])


def _generation() -> Iterator[str]:
    yield _GENERATION
    yield from _classes([row for row in GENERATION.rows if not _in_training(row)], "####")
    yield "### main_generation_server\n\nAs in training, but:\n"
    yield from _classes([row for row in SERVER.rows if not _in_training(row)], "####")
    yield _EVALUATION
    yield from _classes(EVALUATION.rows, "####")


def _in_training(row: Row) -> bool:
    """Whether the PPO table has the same row, for the same key or for the key under `actor_rollout_ref`."""
    return any(replace(row, key=key) == PPO.by_key.get(key) for key in (row.key, f"actor_rollout_ref.{row.key}"))


def _classes(rows: Sequence[Row], level: str) -> Iterator[str]:
    """Yield the tables of the three classes; empty tables are omitted."""
    mapped = [row for row in rows if isinstance(row, Mapped)]
    yield f"{level} Mapped\n\nverl's defaults are applied where the table names one; `null` leaves agentrl's.\n"
    yield from _table(
        ("verl", "agentrl", "verl's default", "note"),
        [(_code(row.key), ", ".join(map(_code, row.names)), _default(row), row.note) for row in mapped],
    )
    if hints := [row for row in rows if isinstance(row, Hint)]:
        yield f"{level} No meaning here\n\n`x.*` is every key under `x` that is not named elsewhere.\n"
        yield from _table(("verl", "why"), [(_code(row.key), row.why) for row in hints])
    if refused := [row for row in rows if isinstance(row, Fixed)]:
        yield f"{level} Refused, but for these values\n"
        yield from _table(
            ("verl", "allowed", "instead"),
            [
                (_code(row.key), ", ".join(_code(_value(value)) for value in row.allowed), row.instead)
                for row in refused
            ],
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
