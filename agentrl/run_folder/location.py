"""Open the folder of a run, by default a new one. Another run is never overwritten; a failed start is cleaned up."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from itertools import count
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.document import redacted, without_secrets
from agentrl.config.paths import absolute
from agentrl.config.resolve import OPEN
from agentrl.errors import ConfigError, Kind, Problem
from agentrl.run_folder.checkpoints import CHECKPOINTS
from agentrl.run_folder.files import LOCK_FILE, delete, disk_errors_in_one_line, locked, write_atomically
from agentrl.run_folder.layout import CONFIG_FILE
from agentrl.run_folder.saved_config import changes, config_in
from agentrl.telemetry.jsonl import METRICS_FILE

OUTPUTS, LATEST_RUN = Path("outputs"), "latest"
MAX_LISTED_CHANGES = 10
"""Maximum number of changed keys that an error lists."""

_OF_A_RUN = (CONFIG_FILE, METRICS_FILE, "trajectories", CHECKPOINTS)
_BEGUN = (CONFIG_FILE, "trajectories", "eval.json")
_FRESH = re.compile(r"\d{8}-\d{6}(-\d+)?")


@contextmanager
def opened(config: RunConfig, rows: Mapping[str, str] | None = None, *, writes_run: bool = True) -> Iterator[RunConfig]:
    """Create and lock the run folder; yield the configuration, in which all paths are absolute and the folder is set.

    If the run fails before it starts, all created files and folders are removed.

    Args:
        rows: the rows that were passed in Python, as file name in the run folder -> lines. `keep_rows` writes them.
        writes_run: False for an evaluation, which may write its results into the folder of a run. That folder is then
            not locked.

    Raises:
        ConfigError: the folder contains another run, is in use, or cannot be created.
    """
    config = absolute(config)
    if config.trainer.default_local_dir and writes_run:
        check_free(_with_rows(config, config.trainer.run_dir, rows or {}))
    folder, made = _make(config)
    try:
        own = writes_run or not holds_run(folder)
        with (
            disk_errors_in_one_line(folder, lambda: "then start again"),
            locked(folder) if own else nullcontext(),
            _emptied_on_failure(folder),
        ):
            _check_own(folder)
            trainer = config.trainer.model_copy(update={"default_local_dir": folder})
            yield _with_rows(config.model_copy(update={"trainer": trainer}), folder, rows or {})
    finally:
        for path in made:
            _remove_empty(path)


def check_free(config: RunConfig) -> None:
    """Check that the folder contains no run, unless the configuration resumes that run.

    Raises:
        ConfigError: the folder contains a run; the message lists the differing keys and what to do.
    """
    folder, trainer = config.trainer.run_dir, config.trainer
    if trainer.default_local_dir is None or trainer.resume_mode != "disable" or not holds_run(folder):
        return
    found = changes(without_secrets(config_in(folder)), redacted(config))
    changed = [(key, before, now) for key, before, now in found if key not in OPEN or now != OPEN[key]]
    changed.sort(key=lambda change: change[0])
    lines = [f"  {key} was {before} and is now {now}" for key, before, now in changed[:MAX_LISTED_CHANGES]]
    more = [f"  and {len(changed) - MAX_LISTED_CHANGES} more keys differ"] if len(changed) > MAX_LISTED_CHANGES else []
    line = (
        f"'{shown(folder)}' holds a run already: trainer.default_local_dir=FOLDER starts a new run in another folder,"
        " trainer.resume_mode=auto resumes that run"
    )
    head = Problem("trainer.default_local_dir", Kind.CONFLICT, line + ("; these keys differ:" if lines else ""))
    raise ConfigError(head, *(Problem("", Kind.OTHER, each) for each in [*lines, *more]))


def shown(path: Path) -> str:
    """Return the path for printing: relative to the working directory if the path is inside it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def holds_run(folder: Path) -> bool:
    """Return whether the folder contains a run, complete or not."""
    return any((folder / name).exists() for name in _OF_A_RUN)


def run_at(path: Path) -> Path:
    """Return the run folder at `path`; for an experiment folder, the run that its link `latest` points to."""
    latest = path / LATEST_RUN
    if not holds_run(path) and latest.is_symlink() and holds_run(latest):
        return latest.resolve()
    return path


def link_latest(folder: Path) -> None:
    """Point the link `latest`, next to a new run folder, to this folder. A `latest` that is not a link stays.

    Do nothing if the user chose the folder; only folders that agentrl names have such a link.
    """
    link = folder.parent / LATEST_RUN
    fresh = _FRESH.fullmatch(folder.name) and OUTPUTS.name in folder.parts
    if not fresh or (link.exists() and not link.is_symlink()):
        return
    aside = folder.parent / f".{LATEST_RUN}.{os.getpid()}.partial"
    aside.unlink(missing_ok=True)
    aside.symlink_to(folder.name)
    aside.replace(link)


@contextmanager
def keep_rows(folder: Path, rows: Mapping[str, str]) -> Iterator[None]:
    """Write rows passed in Python into the run folder; remove them if the run fails before it starts.

    File names contain a digest of the rows. So with different rows, the configured file names differ from the saved
    ones, and resuming raises an error.

    Raises:
        ConfigError: the folder cannot be written, or an existing file was changed.
    """
    made = [folder / name for name in rows if not (folder / name).exists()]
    try:
        for name, lines in rows.items():
            _keep(folder / name, lines)
        yield
    except BaseException:
        kept = str(config_in(folder))
        for path in made:
            if str(path) not in kept:
                path.unlink(missing_ok=True)
                _remove_empty(path.parent)
        raise


def _keep(path: Path, lines: str) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            write_atomically(path, lines)
        elif path.read_text(encoding="utf-8") != lines:
            raise ConfigError.at(
                "trainer.default_local_dir",
                Kind.CONFLICT,
                f"'{path}' was changed after the run wrote it: delete it, or choose another folder",
            )
    except OSError as error:
        raise ConfigError.at(
            "trainer.default_local_dir",
            Kind.WRONG_VALUE,
            f"`trainer.default_local_dir`: cannot write to '{path}': {error.strerror}",
        ) from error


def _check_own(folder: Path) -> None:
    """Check that the folder is writable and has no links through which a run would change files elsewhere."""
    for path in (*folder.iterdir(), *folder.glob("trajectories/*")):
        if path.is_symlink() and path != folder / CHECKPOINTS:
            raise ConfigError.at(
                "trainer.default_local_dir",
                Kind.WRONG_VALUE,
                f"'{path}' is a link: a run would write to '{path.readlink()}'; remove it",
            )
    checkpoints = folder / CHECKPOINTS
    if checkpoints.exists() and not (checkpoints.is_dir() and os.access(checkpoints, os.W_OK | os.X_OK)):
        raise ConfigError.at(
            "trainer.default_local_dir",
            Kind.WRONG_VALUE,
            f"'{checkpoints}' cannot be written, but the run saves its checkpoints there",
        )


def _with_rows(config: RunConfig, folder: Path, rows: Mapping[str, str]) -> RunConfig:
    if not rows:
        return config
    keys = ("train_files", "val_files")
    files = {
        key: tuple(str(folder / name) if name in rows else name for name in getattr(config.data, key)) for key in keys
    }
    return config.model_copy(update={"data": config.data.model_copy(update=files)})


def _make(config: RunConfig) -> tuple[Path, list[Path]]:
    """Return the run folder and the folders that were created for it, deepest first."""
    if config.trainer.default_local_dir:
        return config.trainer.run_dir, _make_folders(config.trainer.run_dir)
    parent = config.trainer.run_dir.absolute()
    if config.trainer.resume_mode == "auto" and holds_run(parent / LATEST_RUN):
        return (parent / LATEST_RUN).resolve(), []
    made = _make_folders(parent)
    name = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(folder, error) from None
        return folder, [folder, *made]
    raise AssertionError("counting has no end")


def _make_folders(folder: Path) -> list[Path]:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return missing


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError.at(
        "trainer.default_local_dir",
        Kind.WRONG_VALUE,
        f"`trainer.default_local_dir`: cannot write to '{folder}': {error.strerror}",
    )


@contextmanager
def _emptied_on_failure(folder: Path) -> Iterator[None]:
    """If the folder is empty now and the run fails before it starts, delete the files created in the folder."""
    empty = all(path.name == LOCK_FILE for path in folder.iterdir())
    try:
        yield
    except BaseException:
        if empty and not any((folder / name).exists() for name in _BEGUN):
            for path in folder.iterdir():
                delete(path)
        raise


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # the folder is not empty, or already removed
        return
