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
        check: `pkg.module:function`, called with the parsed options before the target is imported; no slow imports.
        epilog: `pkg.module:function` that returns the end of the command's help.
    """

    summary: str
    target: str
    arguments: Callable[[ArgumentParser], None]
    epilog: str = ""
    check: str = ""


def _run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="+experiment=NAME and key=value, in Hydra's grammar")
    parser.add_argument("--config-dir", "--config-path", type=Path, help="folder of your own YAML files")


def _verl_arguments(parser: ArgumentParser) -> None:
    _run_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of nested or dotted keys")
    parser.add_argument("--verl", action="store_true", help="keys, defaults and YAML files are verl's")
    parser.add_argument("--config-name", help="with --verl: YAML file in that folder, without its ending")


def _train_arguments(parser: ArgumentParser) -> None:
    _verl_arguments(parser)
    words = "resume the run in that folder, with its own configuration; key=value changes it"
    parser.add_argument("--dry-run", action="store_true", help="check everything, show what would run, write nothing")
    parser.add_argument("--explain", action="store_true", help="show the run's components and hooks, write nothing")
    parser.add_argument("--resume", type=Path, metavar="RUN", help=words)


def _eval_arguments(parser: ArgumentParser) -> None:
    _verl_arguments(parser)
    parser.add_argument("--from", dest="saved", metavar="RUN[@STEP]", help="saved rollouts in place of a model")
    parser.add_argument("--responses", type=Path, metavar="FILE", help="rows with texts to score, in place of a model")
    parser.add_argument("--reward", metavar="FILE.py:FUNCTION", help="with either: scores anew")
    parser.add_argument("--split", choices=("train", "val"), help="with --from: val, where there is one")
    parser.add_argument("--tokenizer", help="with --from and --reward: in place of the run's own")
    parser.add_argument("--response-key", metavar="COLUMN", help="with --responses: its texts; responses by default")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="with either: where figures go; --from writes them nowhere else"
    )


def _export_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a checkpoint's folder, or a run's: then its newest")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that the base ships with")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of an adapter merged in")


def _replay_arguments(parser: ArgumentParser) -> None:
    words = "RUN (PATH or PATH@STEP), modes, key=value over the kept configuration; none lists the modes"
    parser.add_argument("overrides", nargs="*", metavar="RUN MODE...", help=words)
    parser.add_argument("--split", choices=("train", "val"), help="whose rollouts; train where there are some")
    parser.add_argument("--reward", action="append", default=[], help="file.py:function or a built-in; repeatable")
    parser.add_argument("--tokenizer", help="folder or name in place of the run's own")
    parser.add_argument("--unrecorded", choices=("error", "stub", "live"), help="calls not recorded")
    parser.add_argument("--out", type=Path, help="folder for new rollouts")
    parser.add_argument("--allow-unchecked", action="store_true", help="let an audit pass that cannot check everything")
    parser.add_argument("--k", default="1,2,4,8", help="of pass@k and pass^k")
    parser.add_argument("--level", default="0.95", help="of all intervals")
    parser.add_argument("--json", type=Path, help="write everything there; - is the standard output")
    parser.add_argument("--html", type=Path, help="write one page there")


def _view_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder, finished or under way")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="another, to see both side by side")
    parser.add_argument("--port", type=int, help="of 127.0.0.1; by default a free one")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="one with a tokenizer.json, in place of the run's own")


def _import_rollouts_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="a file, or a folder of them: .jsonl, .json, .parquet")
    parser.add_argument("folder", type=Path, help="a new folder, laid out like a run's")
    parser.add_argument("--format", choices=("verl", "messages", "trl"), help="by default what the first rows say")
    parser.add_argument("--split", choices=("train", "val"), default="train", help="what they were rolled out for")
    parser.add_argument("--skip-bad-rows", action="store_true", help="leave out what cannot be read, and list it")
    words = "with trl: a column of a reward function; repeatable; by default every column of numbers"
    parser.add_argument("--reward-column", action="append", default=[], metavar="NAME", help=words)


def _export_rollouts_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="PATH or PATH@STEP, as for replay")
    parser.add_argument("file", type=Path, help="messages and pairs are .jsonl, verl is .parquet")
    words = "dialogues to imitate, preferred and rejected answers, or the tasks in verl's columns"
    parser.add_argument("--format", choices=("messages", "pairs", "verl"), required=True, help=words)
    parser.add_argument("--split", choices=("train", "val"), help="whose rollouts; train where there are some")
    parser.add_argument("--min-reward", type=float, metavar="R", help="take rollouts of at least this reward")
    words = "with pairs: a group's best against its worst (default), or every two that differ"
    parser.add_argument("--pairs", choices=("best", "all"), help=words)
    parser.add_argument("--margin", type=float, metavar="M", help="with pairs: by how much rewards differ at least")


def _data_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("check",), help="what to do with the data")
    words = "files or datasets; also +experiment=NAME and key=value, in Hydra's grammar"
    parser.add_argument("overrides", nargs="*", metavar="FILE", help=words)
    parser.add_argument("--val", action="append", metavar="FILE", help="rows to validate on; repeatable")
    parser.add_argument("--model", metavar="PATH", help="whose tokenizer and template measure prompts (model.path)")
    parser.add_argument("--reward", metavar="NAME", help="a built-in one, or FILE.py:FUNCTION")
    parser.add_argument("--config-dir", "--config-path", type=Path, help="folder of your own YAML files")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _push_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("name", help="owner/model on the hub; made where it does not exist")
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    parser.add_argument("--private", action="store_true", help="make a new model private")
    parser.add_argument("--dry-run", action="store_true", help="show what would be uploaded, and upload nothing")


def _quickstart_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="key=value, added to each training and evaluation")
    parser.add_argument("--seed", type=int, default=0, help="0 by default")
    parser.add_argument("--out", type=Path, default=Path("outputs/quickstart"), help="outputs/quickstart by default")


def _completion_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that sources the script")


COMMANDS = {
    "quickstart": Command(
        "train a tiny model to use a calculator, on a CPU, in a few minutes",
        "agentrl.cli.quickstart:quickstart",
        _quickstart_arguments,
    ),
    "train": Command("train a policy", "agentrl.cli.train:train", _train_arguments, "agentrl.cli.help:of_train"),
    "eval": Command(
        "report what a model achieves on the validation files, or what saved rollouts did",
        "agentrl.cli.train:evaluate",
        _eval_arguments,
    ),
    "generate": Command(
        "roll out every row of the training files once and keep the rollouts, without training",
        "agentrl.cli.generate:generate",
        _verl_arguments,
    ),
    "config": Command("print every key with its default and what it means", "agentrl.cli.config:show", _run_arguments),
    "completion": Command(
        "print a script that completes commands, flags and keys",
        "agentrl.cli.completion:completion",
        _completion_arguments,
    ),
    "export": Command(
        "write a checkpoint as a model's folder, a LoRA adapter merged in",
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
        "look for problems in a dataset: `agentrl data check FILE...`", "agentrl.cli.data.check:data", _data_arguments
    ),
    "replay": Command(
        "look at saved rollouts again: audit, rescore, compare and more", "agentrl.cli.replay:replay", _replay_arguments
    ),
    "view": Command(
        "show a run in the browser: curves, rollouts and conversations",
        "agentrl.cli.view:view",
        _view_arguments,
        check="agentrl.cli.places:check_view",
    ),
    "import-rollouts": Command(
        "read rollouts that verl, TRL or a log of messages kept",
        "agentrl.cli.import_export:import_",
        _import_rollouts_arguments,
        check="agentrl.cli.places:check_import",
    ),
    "export-rollouts": Command(
        "write saved rollouts as dialogues, preference pairs or tasks",
        "agentrl.cli.import_export:export",
        _export_rollouts_arguments,
        check="agentrl.cli.places:check_export_rollouts",
    ),
}
