"""The `agentrl` command: finds the subcommand, and turns a user's mistake into one line."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence

import agentrl
from agentrl.cli.commands import COMMANDS
from agentrl.errors import AgentRLError
from agentrl.interrupts import ended_by_signals, exit_status
from agentrl.registry import load_object


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit status 2 is the user's mistake, said in one line; `--traceback` shows where."""
    options = parse(arguments)
    return finish(lambda: load_object(COMMANDS[options.command].target)(options), options.traceback)


def finish(command: Callable[[], int | None], traceback: bool = False) -> int:
    """Run a command to its exit status, which it may answer; 0 where it answers none."""
    try:
        with ended_by_signals():
            return command() or 0
    except AgentRLError as error:
        if traceback:
            raise
        for line in str(error).splitlines():
            print(f"agentrl: error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("agentrl: interrupted", file=sys.stderr)
        return exit_status()
    except BrokenPipeError:  # the reader of our output went away (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; overrides may stand before, between and after flags."""
    options, rest = parser().parse_known_args(arguments)
    if unknown := [word for word in rest if word.startswith("-") or "overrides" not in options]:
        words = argparse.ArgumentParser()
        COMMANDS[options.command].arguments(words)
        near = difflib.get_close_matches(unknown[0], re.findall(r"--[\w-]+", words.format_usage()), n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        parser().error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if rest:
        options.overrides += rest
    return options


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="agentrl", description="Train language-model agents that use tools.")
    top.add_argument("--version", action="version", version=f"agentrl {agentrl.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        summary = command.summary
        words = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        words.add_argument("--traceback", action="store_true", help="show where a mistake was found")
        command.arguments(words)
    return top


if __name__ == "__main__":
    sys.exit(main())
