"""Tools that run in a sandbox: python, bash, and reading, writing and editing files."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from pydantic import JsonValue, PositiveFloat

from agentrl.concurrency import Offload, Running
from agentrl.config.base import Section
from agentrl.sandboxes.base import RunResult, Sandbox, SandboxEndedError, SandboxFileError, SandboxUnavailableError
from agentrl.sandboxes.loading import kind_of, pool_of
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.running import run_stoppable
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.binding import AgentData, BindsItself, BoundTool, ToolInstance
from agentrl.tools.failures import as_error
from agentrl.tools.result import Answer
from agentrl.tools.task_folders import TaskFolders, task_folder_state
from agentrl.types.messages import FunctionSchema, ToolSchema
from agentrl.types.rollout import Outcome
from agentrl.utils.yaml_list import check_keys

Action = Callable[[Sandbox, Mapping[str, str], float], Coroutine[object, object, Answer]]


@dataclass(frozen=True, slots=True)
class SandboxToolKind:
    """A tool that a YAML file can name.

    Attributes:
        parameters: name -> description; every parameter is a required string.
        action: function (sandbox, arguments, timeout in seconds) that runs a call and returns its answer.
        stateless: description used in place of `description` if the sandbox keeps no variables between calls.
    """

    name: str
    description: str
    parameters: Mapping[str, str]
    action: Action
    stateless: str | None = None

    def tool(self, entry: Mapping[str, object], pools: dict[str, SandboxPool]) -> SandboxTool:
        """Return the tool of an entry of a YAML file.

        Args:
            pools: sandbox setting -> pool, for all tools of the file. Tools with equal settings share a pool, and in
                each rollout one sandbox.
        """
        check_keys(entry, _Entry.model_fields)
        given = _Entry.model_validate(entry)
        key = json.dumps(given.sandbox, sort_keys=True)
        pool = pools[key] = pools.get(key) or pool_of(given.sandbox)
        description = given.description or self._description(given.sandbox)
        return SandboxTool(self._schema(description), self.action, pool, given.timeout_s)

    def _description(self, sandbox: object) -> str:
        return self.description if kind_of(sandbox).keeps_state else self.stateless or self.description

    def _schema(self, description: str) -> ToolSchema:
        properties: dict[str, JsonValue] = {
            name: {"type": "string", "description": text} for name, text in self.parameters.items()
        }
        parameters: dict[str, JsonValue] = {"type": "object", "properties": properties, "required": [*self.parameters]}
        function = FunctionSchema(name=self.name, description=description, parameters=parameters)
        return ToolSchema(function=function)


class _Entry(Section):
    name: str
    description: str | None = None
    timeout_s: PositiveFloat | None = None
    sandbox: str | dict[str, JsonValue] = "local"


@dataclass(frozen=True)
class SandboxTool(BindsItself):
    """A tool that runs in the sandboxes of `pool`."""

    schema: ToolSchema
    action: Action
    pool: SandboxPool
    timeout_s: float | None = None

    @property
    def name(self) -> str:
        """Name by which the model calls the tool."""
        return self.schema.name

    def bound(self, deadline_s: float, offload: Offload) -> BoundTool:
        """Return the tool for the toolbox."""
        return BoundSandboxTool(self, self.timeout_s or deadline_s, offload)


class BoundSandboxTool(BoundTool):
    """A bound `SandboxTool`. The timeout of a call does not include the time until its sandbox has started."""

    def __init__(self, tool: SandboxTool, deadline_s: float, offload: Offload) -> None:
        super().__init__(tool.schema, deadline_s, offload)
        self.action, self.pool = tool.action, tool.pool
        self.shared = tool.pool
        self.state = TaskFolders(tool.pool)

    def instance(self, data: AgentData) -> ToolInstance:
        """Return the tool in the sandbox of this rollout."""
        return _InSandbox(self, data.request_id, stoppable=task_folder_state(data) is not None)


class _InSandbox(ToolInstance):
    """The tool in the sandbox of one rollout.

    Args:
        stoppable: whether the sandbox keeps running after a call is cancelled (at the rollout's deadline). True for a
            task folder, because the task's tests still need the sandbox.
    """

    def __init__(self, tool: BoundSandboxTool, owner: str, *, stoppable: bool) -> None:
        self._tool, self._owner, self._stoppable = tool, owner, stoppable

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        texts = {name: str(value) for name, value in arguments.items()}
        try:
            async with await self._tool.pool.of(self._owner) as sandbox:
                calling = self._tool.action(sandbox, texts, self._tool.deadline_s)
                return await (run_stoppable(sandbox, calling) if self._stoppable else calling)
        except SandboxUnavailableError as error:
            raise InfraError(str(error)) from error
        except SandboxEndedError as error:
            raise ToolError(f"{error}; its files and variables are lost") from error
        except SandboxFileError as error:
            raise ToolError(str(error)) from error

    def begin_release(self) -> Running[None] | None:
        self._tool.pool.release(self._owner)
        return None


async def _python(sandbox: Sandbox, arguments: Mapping[str, str], seconds: float) -> Answer:
    return _answer(await sandbox.run_python(arguments["code"], seconds), seconds)


async def _bash(sandbox: Sandbox, arguments: Mapping[str, str], seconds: float) -> Answer:
    return _answer(await sandbox.run_command(arguments["command"], seconds), seconds)


async def _read(sandbox: Sandbox, arguments: Mapping[str, str], _: float) -> Answer:
    return Answer((await sandbox.download(arguments["path"])).decode("utf-8", "replace"))


async def _write(sandbox: Sandbox, arguments: Mapping[str, str], _: float) -> Answer:
    data = arguments["content"].encode("utf-8", "replace")
    await sandbox.upload(arguments["path"], data)
    return Answer(f"wrote {len(data)} bytes to {arguments['path']}")


async def _edit(sandbox: Sandbox, arguments: Mapping[str, str], _: float) -> Answer:
    path, old = arguments["path"], arguments["old_text"]
    text = (await sandbox.download(path)).decode("utf-8", "surrogateescape")
    if (found := text.count(old) if old else 0) != 1:
        raise ToolError(f"old_text must occur once in {path}, it occurs {found} times")
    await sandbox.upload(path, text.replace(old, arguments["new_text"]).encode("utf-8", "surrogateescape"))
    return Answer(f"edited {path}")


def _answer(result: RunResult, seconds: float) -> Answer:
    notes = []
    if result.timed_out:
        notes.append(f"[stopped after {seconds:g} seconds]")
    elif result.exit_code:
        notes.append(f"[exit code {result.exit_code}]")
    if result.state_lost:
        notes.append("[the interpreter ended; its variables are lost]")
    text = "\n".join(part for part in (result.output.rstrip("\n"), result.error.rstrip("\n"), *notes) if part)
    failed = bool(result.error or result.exit_code or result.state_lost)
    outcome = Outcome.TIMEOUT if result.timed_out else Outcome.TOOL_ERROR if failed else Outcome.OK
    return Answer((text or "[no output]") if outcome is Outcome.OK else as_error(text), outcome=outcome)


_PATH = "path relative to the working folder"
PYTHON = SandboxToolKind(
    "python",
    "Run Python code. Variables are kept for the next call. The value of a last expression is shown.",
    {"code": "Python code"},
    _python,
    "Run Python code. Files are kept for the next call, variables are not. The value of a last expression is shown.",
)
BASH = SandboxToolKind(
    "bash",
    "Run a command in bash.",
    {"command": "command line"},
    _bash,
    "Run a command in bash. Files of the working folder are kept for the next call.",
)
READ_FILE = SandboxToolKind("read_file", "Read a text file.", {"path": _PATH}, _read)
WRITE_FILE = SandboxToolKind(
    "write_file", "Write a text file; replaces an existing one.", {"path": _PATH, "content": "text of the file"}, _write
)
EDIT_FILE = SandboxToolKind(
    "edit_file",
    "Replace one passage of a text file.",
    {"path": _PATH, "old_text": "text that occurs exactly once in the file", "new_text": "text that replaces it"},
    _edit,
)
SANDBOX_TOOLS: Mapping[str, SandboxToolKind] = {
    kind.name: kind for kind in (PYTHON, BASH, READ_FILE, WRITE_FILE, EDIT_FILE)
}
"""Kinds of tools in a sandbox, by their name in a YAML file."""
