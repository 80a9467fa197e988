"""Runs the modes of one command over saved rollouts, shows each result, and keeps all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentrl.errors import AgentRLError, ConfigError
from agentrl.replay.base import Options, Replay, Result
from agentrl.replay.modes import find_mode
from agentrl.replay.output import print_heading, print_result
from agentrl.replay.output_json import findings_json
from agentrl.replay.page import findings_page
from agentrl.replay.saved import SavedRun, open_saved
from agentrl.trainer.files import write_whole


@dataclass(frozen=True, slots=True)
class Findings:
    """What a command found in a run.

    Attributes:
        error: why the mode of the last result could not be done; those after it were not begun.
    """

    run: SavedRun
    results: Sequence[Result]
    error: AgentRLError | None = None

    @property
    def failed(self) -> bool:
        """Whether a mode failed."""
        return any(result.failed for result in self.results)

    def json(self) -> str:
        """All of it as JSON."""
        return findings_json(self.run, self.results)

    def page(self) -> str:
        """All of it as one page of HTML."""
        return findings_page(self.run, self.results)

    def write(self, path: Path, text: str) -> None:
        """Write one of them, whole or not at all.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, f"{text}\n")
        except OSError as error:
            raise ConfigError(f"cannot write '{path}': {error.strerror}") from error


def replay_modes(
    where: str, split: str | None, modes: Sequence[str], options: Options, *, silent: bool = False
) -> Findings:
    """Run `modes` in order over the rollouts at `where`, as far as they can be done; later ones go by earlier scores.

    Args:
        silent: show nothing.

    Raises:
        AgentRLError: there are no such rollouts or modes.
    """
    run = open_saved(where, split)  # first, because modes bring torch
    asked = {name: find_mode(name).load() for name in modes}
    console = Console(quiet=silent, highlight=False)
    print_heading(run, console)
    replay, results = Replay(run, options), list[Result]()
    for name, mode in asked.items():
        try:
            results.append(mode(replay))
        except AgentRLError as error:
            return Findings(run, [*results, Result(name, str(error), failed=True)], error)
        print_result(results[-1], console)
    return Findings(run, results)
