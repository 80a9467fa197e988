"""The `agentrl` command: run a subcommand and print user errors as single lines."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence

from agentrl.cli.commands import COMMANDS
from agentrl.cli.hints import of_flag
from agentrl.concurrency.signals import ended_by_signals, exit_status
from agentrl.errors import AgentRLError
from agentrl.registry import load_object
from agentrl.security.redaction import redacted_text
from agentrl.security.visible_text import visible
from agentrl.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit status 2 means a user error, printed without traceback unless `--traceback` is given."""
    options = parse(arguments)
    return finish(lambda: _run(options), options.traceback)


def _run(options: argparse.Namespace) -> int | None:
    command = COMMANDS[options.command]
    if command.check:
        load_object(command.check)(options)
    status: int | None = load_object(command.target)(options)
    return status


def finish(command: Callable[[], int | None], traceback: bool = False) -> int:
    """Run a command and return its exit status, 0 if the command returns None."""
    try:
        with ended_by_signals():
            return command() or 0
    except AgentRLError as error:
        if traceback:
            raise
        for line in str(error).split("\n"):
            print(f"agentrl: error: {visible(redacted_text(line))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("agentrl: interrupted", file=sys.stderr)
        return exit_status()
    except BrokenPipeError:  # the program that reads the output exited (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options. Overrides may come before, between and after flags."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _refuse_unknown_command(given)
    options, rest = parser({"-h", "--help"} & set(given) != set()).parse_known_args(given)
    if unknown := [word for word in rest if word.startswith("-") or "overrides" not in options]:
        words = argparse.ArgumentParser()
        COMMANDS[options.command].arguments(words)
        hint = of_flag(unknown[0], re.findall(r"--[\w-]+", words.format_usage()), "overrides" in options)
        parser().error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if rest:
        options.overrides += rest
    return options


def _refuse_unknown_command(words: Sequence[str]) -> None:
    """Exit with a suggestion if the subcommand is unknown. Without arguments, print the help."""
    if not words:
        parser().print_help()
        sys.exit(0)
    if words[0].startswith("-") or words[0] in COMMANDS:
        return
    near = difflib.get_close_matches(words[0], COMMANDS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"valid: {', '.join(COMMANDS)}"
    print(f"agentrl: error: unknown command '{visible(words[0])}': {hint}", file=sys.stderr)
    sys.exit(2)


def parser(with_keys: bool = False) -> argparse.ArgumentParser:
    """Build the argument parser.

    Args:
        with_keys: whether the help of subcommands lists examples and keys. This needs a slow import (`agentrl.config`).
    """
    top = argparse.ArgumentParser(prog="agentrl", description="Train language-model agents that use tools.")
    top.add_argument("--version", action="version", version=f"agentrl {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        summary = command.summary
        words = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if with_keys and command.epilog:
            words.formatter_class = argparse.RawDescriptionHelpFormatter
            words.epilog = load_object(command.epilog)()
        words.add_argument("--traceback", action="store_true", help="show the Python traceback of an error")
        command.arguments(words)
    return top


if __name__ == "__main__":
    sys.exit(main())
