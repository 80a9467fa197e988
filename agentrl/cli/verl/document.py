"""Generator of docs/from-verl.md: `python -m agentrl.cli.verl.document > docs/from-verl.md`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.cli.verl.short_form import SHORT
from agentrl.compat.verl.keys.evaluation import EVALUATION
from agentrl.compat.verl.keys.generation import GENERATION, SERVER
from agentrl.compat.verl.keys.rows import UNSET, Fixed, Hint, Mapped, Row
from agentrl.compat.verl.keys.table import PPO
from agentrl.utils.verl_classes import INTERACTIONS, MANAGERS, REWARDS, TOOLS

_OPENING = """\
# Coming from verl

<!-- Written by `python -m agentrl.cli.verl.document > docs/from-verl.md` from its table; do not edit. -->

verl commands work unchanged. Only the name of the module differs:

```sh
python3 -m agentrl.trainer.main_ppo data.train_files=train.parquet data.val_files=test.parquet \\
    data.train_batch_size=16 actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 algorithm.adv_estimator=grpo trainer.total_epochs=3
```

`agentrl train --verl …` is the same command. `agentrl eval --verl …` evaluates on `data.val_files` and does not train.
`--config-path` and `--config-name` read a YAML file that builds on `ppo_trainer` or `ppo_megatron_trainer`. You can
also use agentrl's keys (`agentrl config` lists them), unless verl has a key of the same name. The command is translated
to agentrl's keys: the run's `config.yaml` contains the translation.

`--config-name=ppo_megatron_trainer` and `actor_rollout_ref.actor.strategy=megatron` select Megatron
([megatron.md](megatron.md)). The reference and the critic use the policy's parallel sizes, too.

If an algorithm of agentrl combines the estimator and the loss of the command, both keys become one `algorithm.name`:
`adv_estimator=gae` becomes `gae` with a critic, and `adv_estimator=grpo` with `policy_loss.loss_mode=gspo` becomes
`gspo`. Such a run gets verl's defaults (clip ratios of 0.2, `token-mean`). If you set `algorithm.name` yourself,
agentrl's defaults apply ([algorithms.md](algorithms.md)).

As in verl, `trainer.resume_mode` is `auto`: the same command with the same `trainer.default_local_dir` resumes the run.
Without `trainer.default_local_dir` each command starts a new run in `outputs/<experiment_name>/<date>-<time>`.
`agentrl train --resume RUN` resumes any run, also one started by a verl command. It accepts only agentrl's keys.

Each key belongs to one of three classes:

- **Mapped**: it becomes one or more keys of agentrl.
- **Ignored**: it configures a part that only verl has. A notice on stderr lists ignored keys once.
- **Refused**: ignoring it could change results. The error names the replacement.

## Intended differences

- A group of one rollout, or with equal rewards, has advantage 0. verl trains a group of one on its raw score.
  `rollout.n` is 1 by default, so set it.
- Probability ratios use the log-probabilities of the engine. By default, verl computes these log-probabilities again.
- `solution_str` contains only the model's text. In verl it also contains the text of tools
  (`reward.include_tool_text=true`).
- A prompt longer than `data.max_prompt_length` is refused, dropped, or cut inside its last user message
  (`data.truncation=left|middle|right`). verl cuts the rendered prompt, so `left` loses the system message and tools.
  The length of a prompt includes the agent loop's template and the tools of the row.
- A rollout of several trajectories counts once in its group.
- Under estimators that whiten advantages, groups with equal rewards keep advantage 0; verl whitens these groups, too.
  [algorithms.md](algorithms.md) lists more differences.
- If a reward hangs or cannot be reached, its rollout has no score and is excluded from its group. In
  verl, the rollout scores 0.
- Several scorers accept more answers than verl's ([rewards.md](rewards.md)).
- With dynamic sampling, every group with different rewards is trained on. New tasks are drawn until a step has all its
  groups.
- `data.custom_cls` names a class that provides the rows of a file. A custom reward manager is a class that accepts
  (reward, config) ([extending.md](extending.md)).
- Rows left at the end of an epoch start the next epoch; verl drops them. With fewer rows than
  `data.train_batch_size`, a step uses some rows more than once; a notice at the start reports this. verl refuses such a
  configuration.
- `data.dataset_weights` (one weight per train file) sets how often rows of each file are drawn. The draws of a file are
  spread evenly over the run. Within a file, every row is drawn once before any row is drawn again. An epoch has as many
  draws as there are rows.

## Rows

verl's columns are read unchanged: `prompt`, `data_source`, `agent_name`, `reward_model.ground_truth`, `extra_info`
with `tools_kwargs`, `interaction_kwargs` and `tool_selection`. In addition:

- `prompts` can replace `prompt`: text, a list of messages, or a list of one text.
- `reward_model.test_cases` is passed to the reward as `extra_info["test_cases"]`. If the row has no
  ground truth, `test_cases` is also the ground truth.
- `tool_config` is a column or a key of `extra_info` with settings for one row: `available_tools` (the same as
  `tool_selection`), `tool_format` (replaces `multi_turn.format`), `max_tool_calls`, and `timeout` (seconds per call,
  replaces the tool's timeout).
- In the YAML file of the tools, `type: mcp` with `MCPBaseTool` and `MCPSearchTool` is read unchanged
  ([MCP servers](mcp.md#verls-files)).
- An unknown tool, agent loop, interaction, tool format or data source is refused at the start. The error names the
  file, the row and the nearest valid name. Rows with videos or audio are refused too. Images work in rollouts
  ([multimodal.md](multimodal.md)).
"""

_SHORT = """\
## The short form

```sh
./train.sh --model Qwen/Qwen3-0.6B --train train.json --rollout_n 8 --epochs 2 --reward_func ./my_reward.py \\
    --lr 5e-7 --kl_coef 0.01 --n_gpus 1
```

Any `key=value` may follow.
`train.json` may be a list of `{"prompt": …, "ground_truth": …, "data_source": …}`. Without `--train`,
`train.parquet`, `train.jsonl` or `train.json` in the working folder is used. Each flag sets a verl key, and each
environment variable sets a flag. A flag overrides the environment variable, and a key overrides both. The algorithm is
GRPO with one update per step.
"""


_GENERATION = """\
## Generating and scoring responses

```sh
python3 -m agentrl.trainer.main_generation data.path=test.parquet data.n_samples=4 data.output_path=out.parquet \\
    model.path=Qwen/Qwen3-0.6B rollout.temperature=1.0 rollout.response_length=1024
python3 -m agentrl.trainer.main_eval data.path=out.parquet custom_reward_function.path=reward.py
```

`main_generation` and `main_generation_server` are the same as `agentrl generate --verl`. If a command sets
`data.train_files` or a key of `actor_rollout_ref`, all its keys are read as keys of `main_generation_server`. The
rollouts with their tokens are in `out/`, a run folder next to `out.parquet`. The same command resumes a run that was
stopped. Agents, tools and rewards work as in training, and you can set agentrl's keys for them. `main_eval` prints
metrics with confidence intervals; `out.eval.json` contains all of them ([evaluate.md](evaluate.md)).

### main_generation

Keys that are not listed here are the same as in training, without the prefix `actor_rollout_ref`.
"""

_EVALUATION = """\
### main_eval

A key that starts with two dashes is a flag of `agentrl eval`.
"""


DEFAULTS = """If a command does not set a key, verl's default in the table applies. Where the table has `null` or
nothing, agentrl's default applies."""


def document() -> str:
    """Return the page."""
    return "\n".join([_OPENING, *_named_classes(), *_classes(PPO.rows, "##"), *_generation(), _SHORT, *_short_form()])


_NAMED = """\
## Classes in YAML files

verl's tool and interaction files load unchanged where agentrl has a class with the same configuration. Other classes of
verl are refused. A file of your own that imports from verl needs other imports: `BaseTool`, `ToolResponse` and
`OpenAIFunctionToolSchema` from `agentrl.tools`, `BaseInteraction` from `agentrl.interactions.base`, agent loops from
`agentrl.compat.verl`.
"""


def _named_classes() -> Iterator[str]:
    yield _NAMED
    known = {**TOOLS, **INTERACTIONS}
    replaced = {name: each.target for name, each in known.items() if each.target} | dict(REWARDS) | dict(MANAGERS)
    yield from _table(("verl", "agentrl"), [(_code(name), _code(target)) for name, target in replaced.items()])
    refused = [(_code(name), each.instead) for name, each in known.items() if not each.target]
    yield from _table(("refused", "instead"), refused)


def _generation() -> Iterator[str]:
    yield _GENERATION
    yield from _classes([row for row in GENERATION.rows if not _in_training(row)], "####")
    yield "### main_generation_server\n\nAs in training, but:\n"
    yield from _classes([row for row in SERVER.rows if not _in_training(row)], "####")
    yield _EVALUATION
    yield from _classes(EVALUATION.rows, "####")


def _in_training(row: Row) -> bool:
    """Whether the PPO table has an equal row, either for the key itself or for the key under `actor_rollout_ref`."""
    return any(replace(row, key=key) == PPO.by_key.get(key) for key in (row.key, f"actor_rollout_ref.{row.key}"))


def _classes(rows: Sequence[Row], level: str) -> Iterator[str]:
    """Yield the tables of the three classes; empty tables are omitted."""
    mapped = [row for row in rows if isinstance(row, Mapped)]
    yield f"{level} Mapped\n\n{DEFAULTS}\n"
    yield from _table(
        ("verl", "agentrl", "verl's default", "note"),
        [(_code(row.key), ", ".join(map(_code, row.names)), _default(row), row.note) for row in mapped],
    )
    if hints := [row for row in rows if isinstance(row, Hint)]:
        yield f"{level} Ignored\n\n`x.*` means every key under `x` that is not listed elsewhere.\n"
        yield from _table(("verl", "why"), [(_code(row.key), row.why) for row in hints])
    if refused := [row for row in rows if isinstance(row, Fixed)]:
        yield f"{level} Refused, except for these values\n"
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
