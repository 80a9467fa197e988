"""Settings of a harness, read from a YAML file of the user, or from a YAML file that is part of agentrl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import yaml
from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, ValidationError
from pydantic_core import ErrorDetails

from agentrl.config.base import Section
from agentrl.errors import AgentRLError, ConfigError, Kind, Problem, suggestion
from agentrl.harness.placeholders import has_placeholder, unknown_names
from agentrl.sandboxes.loading import kind_of
from agentrl.utils.shipped import shipped

KEY = "rollout.harness"
_OF_COMMANDS = ("stdin", "env", "files", "workdir", "sandbox", "network", "readonly", "disk_mb", "max_starting")
"""Keys that have no effect if the harness is a function."""
_TASK = "task"
_OTHER_KINDS = ("docker", "podman", "e2b", "sandbox_fusion")


class HarnessSettings(Section):
    """How a harness is started. Texts may contain placeholders, such as {base_url}."""

    command: tuple[str, ...] = ()
    """Program and arguments."""
    function: str | None = None
    """Instead of a command: a coroutine function `run(task, endpoint)`, as `path/to/file.py:name`."""
    python: str | None = None
    """Interpreter that runs the function in a separate process; null: the function runs in the process of the run."""
    stdin: str = ""
    """Standard input of the command."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables. PATH, HOME, LANG and, for a command, AGENTRL_ variables are added; the harness gets no
    other variables. With `sandbox: task`, the harness also gets the variables of the task's sandbox."""
    files: dict[str, str] = Field(default_factory=dict)
    """Files that are written before the start: path in HOME -> text."""
    model: str = "policy"
    """Model name that the harness uses. The gateway accepts any name."""
    dialect: Literal["chat_completions", "responses", "messages"] | None = None
    """Interface that the harness uses; only information for the reader of the file."""
    workdir: str | None = None
    """Folder that is copied to the working folder of each rollout; null: the working folder is empty."""
    deadline_s: PositiveFloat | None = None
    """Seconds until the harness is stopped; null: only `rollout.multi_turn.rollout_timeout_s` applies."""
    on_exit: Literal["score", "fail"] = "score"
    """What happens if the harness ends with an error after at least one turn. score: the rollout is scored as usual.
    fail: the rollout is dropped."""
    sandbox: str | dict[str, JsonValue] | None = None
    """Sandbox, as for tools (docs/sandboxes.md); task: the sandbox of the rollout's task folder; null: no sandbox."""
    network: Literal["host", "gateway"] = "host"
    """Network of a harness without a sandbox. host: the network of this machine. gateway: only the gateway."""
    readonly: tuple[Path, ...] = ()
    """Without a sandbox: folders below /tmp of this machine that the harness can read."""
    disk_mb: PositiveInt = 1024
    """Without a sandbox: size of /tmp in MiB. /tmp is in memory, and contains HOME and the working folder."""
    max_running: PositiveInt = 64
    """Maximum number of harnesses at a time; further rollouts wait."""
    max_starting: PositiveInt = 4
    """Maximum number of harnesses at a time that have not yet sent a request."""

    @property
    def in_task(self) -> bool:
        """Whether the command runs in the sandbox of the rollout's task folder."""
        return self.sandbox is not None and sandbox_options(self.sandbox).get("kind") == _TASK

    def named_texts(self) -> Iterator[tuple[str, str]]:
        """Yield the texts that may have placeholders, with their keys."""
        yield from (("command", text) for text in self.command)
        yield from ((f"env.{name}", text) for name, text in self.env.items())
        yield from ((f"files.{name}", text) for name, text in self.files.items())
        yield from (("stdin", self.stdin), ("workdir", self.workdir or ""))

    def texts(self) -> list[str]:
        """Return the texts that may have placeholders."""
        return [text for _, text in self.named_texts()]


@dataclass(frozen=True, slots=True)
class Harness:
    """The settings of a file.

    Attributes:
        name: name of the file, for messages.
        folder: folder of the file; programs in it stay visible to the harness.
    """

    name: str
    folder: Path
    settings: HarnessSettings


def read_harness(named: str) -> Harness:
    """Read the YAML file `named`, or the file with this name among the files that come with agentrl.

    Raises:
        ConfigError: there is no such file, or it has mistakes; the message lists all of them, one per line.
    """
    path = _find(named)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _wrong([f"{path}: {' '.join(str(error).split())}"]) from error
    if not isinstance(values, dict):
        raise _wrong([f"{path}: expected keys such as 'command'"])
    try:
        settings = HarnessSettings.model_validate(values)
    except ValidationError as error:
        raise _wrong([f"{path}: {line}" for line in map(_explained, error.errors())]) from None
    if problems := list(_problems(settings)):
        raise _wrong([f"{path}: {line}" for line in problems])
    return Harness(path.stem, path.absolute().parent, settings)


def harness_names() -> list[str]:
    """Return the names of the files that come with agentrl."""
    return sorted(file.stem for file in shipped("configs/harness").glob("*.yaml"))


def _find(named: str) -> Path:
    path = Path(named).expanduser()
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise ConfigError.at(KEY, Kind.NOT_FOUND, f"`{KEY}`: there is no file '{named}'")
    if named in harness_names():
        return shipped(f"configs/harness/{named}.yaml")
    hint = suggestion(named, harness_names())
    raise ConfigError.at(KEY, Kind.NOT_FOUND, f"`{KEY}`: unknown harness '{named}': {hint}, or name a YAML file")


def _wrong(lines: list[str]) -> ConfigError:
    first, *others = (Problem(KEY, Kind.WRONG_VALUE, f"`{KEY}`: {line}") for line in lines)
    return ConfigError(first, *others)


def _explained(problem: ErrorDetails) -> str:
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{key}': {suggestion(key, HarnessSettings.model_fields)}"
    return f"'{key}': {problem['msg'].removeprefix('Value error, ')}"


def _problems(settings: HarnessSettings) -> Iterator[str]:
    if bool(settings.command) == (settings.function is not None):
        yield "expected either 'command' or 'function'"
    if settings.function is not None:
        for key in _OF_COMMANDS:
            if key in settings.model_fields_set and not (key == "env" and settings.python):
                yield f"'{key}' has no effect with 'function'{_unless(key)}"
    elif settings.python is not None:
        yield "'python' has no effect without 'function'"
    if settings.python is not None:
        for name in (name for name, text in settings.env.items() if has_placeholder(text)):
            yield f"'env.{name}': no placeholders with 'python': the function gets the values from its arguments"
    for where, text in settings.named_texts():
        yield from (f"'{where}': {line}" for line in unknown_names(text))
    for path in settings.files:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            yield f"'files': '{path}' must be a path in HOME"
    yield from _sandbox_problems(settings)


def _unless(key: str) -> str:
    return " in the process of the run: set 'python'" if key == "env" else ""


def _sandbox_problems(settings: HarnessSettings) -> Iterator[str]:
    if settings.sandbox is None:
        return
    for key in ("network", "readonly", "disk_mb"):
        if key in settings.model_fields_set:
            yield f"'{key}' has no effect with 'sandbox', which has its own settings"
    if settings.in_task:
        yield from _in_task_problems(settings)
        return
    if (kind := sandbox_options(settings.sandbox).get("kind")) in _OTHER_KINDS:
        yield f"'sandbox': a harness runs in a sandbox of kind 'local' or 'task', not '{kind}'"
        return
    try:
        kind_of(settings.sandbox).settings.model_validate(sandbox_options(settings.sandbox))
    except ValidationError as error:
        yield from (f"'sandbox.{'.'.join(map(str, each['loc']))}': {each['msg']}" for each in error.errors())
    except AgentRLError as error:
        yield f"'sandbox': {error}"


def _in_task_problems(settings: HarnessSettings) -> Iterator[str]:
    if settings.workdir is not None:
        yield "'workdir' has no effect with 'sandbox: task': the task's working folder is used"
    if len(sandbox_options(settings.sandbox or _TASK)) > 1:
        yield "'sandbox': 'task' has no settings: the sandbox of the tools is used"


def sandbox_options(setting: str | Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the setting of a sandbox as a mapping with `kind`."""
    return {"kind": setting} if isinstance(setting, str) else setting
