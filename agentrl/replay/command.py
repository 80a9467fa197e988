"""Run the modes of one replay command, print each result, and collect all results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentrl.errors import AgentRLError, ConfigError
from agentrl.replay.base import Options, Replay, Result
from agentrl.replay.modes import find_mode
from agentrl.replay.output.html import findings_page
from agentrl.replay.output.json import findings_json
from agentrl.replay.output.tables import print_heading, print_result
from agentrl.replay.saved_run import SavedRun, open_saved
from agentrl.run_folder.files import write_atomically


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of one replay command.

    Attributes:
        error: why the last mode in `results` could not run; later modes were skipped. None if all modes ran.
    """

    run: SavedRun
    results: Sequence[Result]
    error: AgentRLError | None = None

    @property
    def failed(self) -> bool:
        """Whether a mode failed."""
        return any(result.failed for result in self.results)

    def json(self) -> str:
        """All results as JSON."""
        return findings_json(self.run, self.results)

    def page(self) -> str:
        """All results as one HTML page."""
        return findings_page(self.run, self.results)

    def write(self, path: Path, text: str) -> None:
        """Write `text` (JSON or HTML) to a file, atomically.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, f"{text}\n")
        except OSError as error:
            raise ConfigError.keyless(f"cannot write '{path}': {error.strerror}") from error


def replay_modes(
    where: str, split: str | None, modes: Sequence[str], options: Options, *, silent: bool = False
) -> Findings:
    """Run `modes` in order over the rollouts at `where`, until the first error. A mode uses scores of earlier modes.

    Args:
        silent: print nothing.

    Raises:
        AgentRLError: the rollouts or one of the modes do not exist.
    """
    run = open_saved(where, split)  # first, to report a wrong path before torch is imported
    functions = {name: find_mode(name).load() for name in modes}
    console = Console(quiet=silent, highlight=False)
    print_heading(run, console)
    replay, results = Replay(run, options), list[Result]()
    for name, mode in functions.items():
        try:
            results.append(mode(replay))
        except AgentRLError as error:
            return Findings(run, [*results, Result(name, str(error), failed=True)], error)
        print_result(results[-1], console)
    return Findings(run, results)
