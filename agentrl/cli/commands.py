"""Table of all subcommands: summary, target function and arguments."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    Attributes:
        target: `pkg.module:function`, called with the parsed options; imported only when the command runs.
        arguments: adds the command's arguments to its parser.
        check: `pkg.module:function`, called with the parsed options before the target is imported. The import of
            this `pkg.module` must be fast.
        epilog: `pkg.module:function` that returns the last part of the command's help.
    """

    summary: str
    target: str
    arguments: Callable[[ArgumentParser], None]
    epilog: str = ""
    check: str = ""


def _run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="+experiment=NAME and key=value (Hydra syntax)")
    parser.add_argument("--config-dir", "--config-path", type=Path, help="folder with your own YAML files")


def _verl_arguments(parser: ArgumentParser) -> None:
    _run_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with nested or dotted keys")
    parser.add_argument("--verl", action="store_true", help="use verl's keys, defaults and YAML files")
    parser.add_argument("--config-name", help="with --verl: name of a YAML file in --config-dir, without .yaml")


def _train_arguments(parser: ArgumentParser) -> None:
    _verl_arguments(parser)
    words = "resume the run in this folder with its saved configuration; key=value overrides it"
    parser.add_argument(
        "--dry-run", action="store_true", help="check and show the configuration; run and write nothing"
    )
    parser.add_argument(
        "--explain", action="store_true", help="show the run's components and hooks; run and write nothing"
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help=words)


def _plan_arguments(parser: ArgumentParser) -> None:
    _verl_arguments(parser)
    parser.add_argument("--gpus", metavar="64xH100", help="number and name of the devices, or a hardware YAML file")
    parser.add_argument("--from", dest="saved", metavar="RUN", help="use lengths and speeds of this run")
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="YAML file: distribution of rollout lengths")
    parser.add_argument("--check", metavar="RUN", help="compare predicted and measured times of this run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the simulated run in this SVG file")


def _eval_arguments(parser: ArgumentParser) -> None:
    _verl_arguments(parser)
    parser.add_argument("--from", dest="saved", metavar="RUN[@STEP]", help="evaluate saved rollouts instead of a model")
    parser.add_argument("--responses", type=Path, metavar="FILE", help="score the responses in a file; sample nothing")
    parser.add_argument(
        "--reward", metavar="FILE.py:FUNCTION", help="with --from or --responses: score with this reward"
    )
    parser.add_argument(
        "--split", choices=("train", "val"), help="with --from: split to evaluate (default: val if it exists)"
    )
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="with --from and --reward: tokenizer to use instead of the run's own"
    )
    parser.add_argument(
        "--response-key", metavar="COLUMN", help="with --responses: column of the texts (default: responses)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="with --from or --responses: write the results to this file"
    )


def _export_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="checkpoint folder, or run folder (its newest checkpoint)")
    parser.add_argument("folder", type=Path, help="new folder for the model")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code from the base model's folder")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="dtype of the merged model, for LoRA checkpoints only",
    )


def _replay_arguments(parser: ArgumentParser) -> None:
    words = "RUN is PATH or PATH@STEP; `agentrl replay` lists the modes; key=value overrides the saved configuration"
    parser.add_argument("overrides", nargs="*", metavar="RUN MODE...", help=words)
    parser.add_argument("--split", choices=("train", "val"), help="split to read (default: train if it exists)")
    parser.add_argument(
        "--reward", action="append", default=[], help="file.py:function or a built-in reward; repeatable"
    )
    parser.add_argument("--tokenizer", metavar="FOLDER", help="tokenizer folder or name, instead of the run's own")
    parser.add_argument(
        "--unrecorded", choices=("error", "stub", "live"), help="how to handle calls without a recorded result"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder for new rollouts")
    parser.add_argument("--uid", help="with the mode why: uid of the group to explain")
    parser.add_argument(
        "--allow-unchecked", action="store_true", help="audit passes even if it could not check an invariant"
    )
    parser.add_argument("--k", default="1,2,4,8", help="values of k for pass@k and pass^k (default: 1,2,4,8)")
    parser.add_argument("--level", default="0.95", help="confidence level of intervals (default: 0.95)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this JSON file; - is stdout")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write all results to this HTML file")


def _view_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run folder; the run may still be running")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="second run, shown side by side")
    parser.add_argument("--port", type=int, help="port on 127.0.0.1 (default: a free port)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="folder with a tokenizer.json, instead of the run's own")


def _import_rollouts_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="file, or folder of files: .jsonl, .json, .parquet")
    parser.add_argument("folder", type=Path, help="new folder with the layout of a run folder")
    parser.add_argument(
        "--format",
        choices=("verl", "messages", "trl", "openenv"),
        help="format of the source (default: guessed from the first rows)",
    )
    parser.add_argument(
        "--split", choices=("train", "val"), default="train", help="save the rollouts as this split (default: train)"
    )
    parser.add_argument("--skip-bad-rows", action="store_true", help="skip and list rows that cannot be read")
    words = "with --format trl: column of a reward function; repeatable (default: all numeric columns)"
    parser.add_argument("--reward-column", action="append", default=[], metavar="NAME", help=words)


def _export_rollouts_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="PATH or PATH@STEP, as for replay")
    parser.add_argument("file", type=Path, help="output file: .parquet for verl, .jsonl for the other formats")
    words = (
        "messages: dialogues for SFT; pairs: chosen and rejected answers; verl: tasks with verl's columns;"
        " openenv: exact tokens as OpenEnv's TrainingTrace"
    )
    parser.add_argument("--format", choices=("messages", "pairs", "verl", "openenv"), required=True, help=words)
    parser.add_argument("--split", choices=("train", "val"), help="split to read (default: train if it exists)")
    parser.add_argument("--min-reward", type=float, metavar="R", help="skip rollouts with a lower reward")
    words = "with --format pairs: best and worst of each group (default), or all pairs with different rewards"
    parser.add_argument("--pairs", choices=("best", "all"), help=words)
    parser.add_argument(
        "--margin", type=float, metavar="M", help="with --format pairs: minimum difference of the rewards"
    )


def _data_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("check",), help="the only action: check the data")
    words = "files or datasets; also +experiment=NAME and key=value (Hydra syntax)"
    parser.add_argument("overrides", nargs="*", metavar="FILE", help=words)
    parser.add_argument("--val", action="append", metavar="FILE", help="validation file; repeatable")
    parser.add_argument(
        "--model", metavar="PATH", help="model whose tokenizer and chat template measure prompts (model.path)"
    )
    parser.add_argument("--reward", metavar="NAME", help="built-in reward or FILE.py:FUNCTION")
    parser.add_argument("--config-dir", "--config-path", type=Path, help="folder with your own YAML files")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def _chat_arguments(parser: ArgumentParser) -> None:
    words = "model folder or hub name; also +experiment=NAME and key=value (Hydra syntax)"
    parser.add_argument("overrides", nargs="*", metavar="MODEL", help=words)
    words = "tools: .py of functions, .yaml, or .json with a list of schemas (default: two examples)"
    parser.add_argument("--tools", type=Path, metavar="FILE", help=words)
    parser.add_argument("--data", metavar="FILE", help="file or dataset whose first row starts the conversation")
    parser.add_argument("--config-dir", "--config-path", type=Path, help="folder with your own YAML files")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def _gateway_arguments(parser: ArgumentParser) -> None:
    _run_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with nested or dotted keys")
    parser.add_argument("--model", metavar="PATH", help="model folder or hub name (model.path)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free port)")
    parser.add_argument("--dry-run", action="store_true", help="check and show the configuration; serve nothing")
    words = "seconds without a request after which a rollout ends (default: 600)"
    parser.add_argument("--idle-s", type=float, default=600.0, metavar="S", help=words)


def _push_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("name", help="owner/model on the hub; created if it does not exist")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")
    parser.add_argument("--private", action="store_true", help="create the model on the hub as a private model")
    parser.add_argument("--dry-run", action="store_true", help="show the files without uploading them")


def _quickstart_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="key=value for both trainings and both evaluations")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("outputs/quickstart"),
        metavar="FOLDER",
        help="output folder (default: outputs/quickstart)",
    )


def _completion_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell to print the script for")


COMMANDS = {
    "quickstart": Command(
        "train a tiny model to use a calculator, on a CPU, in a few minutes",
        "agentrl.cli.quickstart:quickstart",
        _quickstart_arguments,
    ),
    "train": Command("train a policy", "agentrl.cli.train:train", _train_arguments, "agentrl.cli.help:of_train"),
    "plan": Command(
        "predict memory, times and price of a run before it starts", "agentrl.cli.plan:plan", _plan_arguments
    ),
    "eval": Command(
        "evaluate a model on the validation files, or evaluate saved rollouts",
        "agentrl.cli.train:evaluate",
        _eval_arguments,
    ),
    "generate": Command(
        "sample and save rollouts for every row of the training files, without training",
        "agentrl.cli.generate:generate",
        _verl_arguments,
    ),
    "config": Command("print every key with its default and description", "agentrl.cli.config:show", _run_arguments),
    "completion": Command(
        "print a shell completion script for commands, flags and keys",
        "agentrl.cli.completion:completion",
        _completion_arguments,
    ),
    "export": Command(
        "write a checkpoint as a Hugging Face model folder; a LoRA adapter is merged",
        "agentrl.cli.export:export",
        _export_arguments,
    ),
    "push": Command(
        "upload a run's model and a model card to the Hugging Face hub",
        "agentrl.cli.push:push_run",
        _push_arguments,
        check="agentrl.cli.places:check_push",
    ),
    "data": Command(
        "check a dataset for problems: `agentrl data check FILE...`", "agentrl.cli.data.check:data", _data_arguments
    ),
    "chat": Command(
        "check a model: show a conversation with tools as the model sees it",
        "agentrl.cli.chat.command:chat",
        _chat_arguments,
    ),
    "gateway": Command(
        "serve a model to other programs, and record their conversations as rollouts",
        "agentrl.cli.gateway.command:gateway",
        _gateway_arguments,
    ),
    "replay": Command(
        "analyse saved rollouts: audit, rescore, compare and more", "agentrl.cli.replay:replay", _replay_arguments
    ),
    "view": Command(
        "show a run in the browser: curves, rollouts and conversations",
        "agentrl.cli.view:view",
        _view_arguments,
        check="agentrl.cli.places:check_view",
    ),
    "import-rollouts": Command(
        "import rollouts logged by verl, TRL or OpenEnv, or as chat messages",
        "agentrl.cli.import_export:import_",
        _import_rollouts_arguments,
        check="agentrl.cli.places:check_import",
    ),
    "export-rollouts": Command(
        "export saved rollouts as dialogues, preference pairs, tasks or traces",
        "agentrl.cli.import_export:export",
        _export_rollouts_arguments,
        check="agentrl.cli.places:check_export_rollouts",
    ),
}
