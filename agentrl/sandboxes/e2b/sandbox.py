"""One E2B sandbox."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import time
from collections.abc import Callable, Coroutine
from posixpath import join
from typing import Any

import httpx
from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    TimeoutException,
)
from e2b.api.client_async import get_transport
from e2b_code_interpreter import AsyncSandbox, Context, Execution

from agentrl.sandboxes.base import (
    CANCELLED,
    MAX_FILE_BYTES,
    MAX_OUTPUT_CHARS,
    RunResult,
    SandboxEndedError,
    SandboxFileError,
    SandboxUnavailableError,
    shortened,
)
from agentrl.sandboxes.e2b.answers import MAX_ANSWER_BYTES, Answer, AnswerTooLongError, BoundedTransport
from agentrl.sandboxes.e2b.calls import NoAnswerError, described, within
from agentrl.sandboxes.e2b.output import Output

WORK = "/home/user"
"""The working folder in a sandbox."""
CONTEXT_S = 60.0
"""Seconds to start an interpreter."""
FILE_S = 60.0
"""Seconds to send or receive a file."""
KILL_S = 30.0
LOOK_S = 10.0
"""Timeout in seconds of a request that asks whether a sandbox runs, or whether an interpreter answers."""
GRACE_S = 5.0
"""Seconds after the deadline of a command until the connection is closed. By then, the sandbox itself should
have stopped the command."""
_LOGGER = logging.getLogger(__name__)
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_INTERPRETER_ENDED = frozenset(("ContextRestarting", "UnexpectedEndOfExecution", "WebSocketError"))
"""Names of errors with which the server reports that the interpreter ended."""
_KILLED = (137, -1)
"""Exit codes of a command that the program `timeout` killed."""
_MAX_COMMAND_BYTES = 131_000
"""Maximum size of a command. Linux limits an argument of a program to 128 KiB."""


class CodeInterpreter(AsyncSandbox):  # type: ignore[misc]  # the library has no types
    """The library's sandbox. This class limits the size of the interpreter's answers and detects incomplete answers."""

    def __init__(self, **options: Any) -> None:  # Any: options of the library
        super().__init__(**options)
        self.answer = Answer()

    @property
    def _client(self) -> httpx.AsyncClient:
        inner = get_transport(self.connection_config, http_version="1.1")
        return httpx.AsyncClient(transport=BoundedTransport(inner, self.answer))


class E2BSandboxSession:
    """See `Sandbox`."""

    def __init__(self, client: CodeInterpreter, lifetime_s: float) -> None:
        self._client, self._lifetime_s = client, lifetime_s
        self._started = time.monotonic()
        self._context: Context | None = None
        self._using = asyncio.Lock()
        self._ended = self._killed = self._cancelled = False
        self._folder = WORK
        self._as_user: dict[str, str] = {}
        self._with_env: dict[str, dict[str, str]] = {}

    @property
    def id(self) -> str:
        """Identifier of the sandbox in the service."""
        return str(self._client.sandbox_id)

    async def run_python(self, code: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_python`. The first call also starts the interpreter, before the deadline starts to count."""
        async with self._using:
            self._check()
            if self._context is None:
                self._context = await self._new_context()
            output = Output()
            try:
                execution = await within(deadline_s, self._execute(code, deadline_s, output))
            except asyncio.CancelledError:
                self._ended = self._cancelled = True  # the code may still run
                raise
            except (NoAnswerError, AnswerTooLongError) as error:
                return await self._stopped(output, too_long=isinstance(error, AnswerTooLongError))
            except Exception as error:  # the library lets errors of httpx, JSON and its own parser through
                raise await self._failure(error, ran=True) from error
            if not self._client.answer.complete:
                raise await self._failure(EOFError("the answer ended too early"), ran=True)
            return await self._result(execution, output)

    async def run_command(self, command: str, deadline_s: float) -> RunResult:
        """See `Sandbox.run_command`."""
        limited = self._limited(_encodable(command), deadline_s)
        if "\0" in command or len(limited.encode()) > _MAX_COMMAND_BYTES:
            return RunResult("", "the command has a null byte, or is too long: write it to a file")
        async with self._using:
            self._check()
            output, began = Output(), time.monotonic()
            try:
                code = await within(deadline_s + GRACE_S, self._run(limited, output, deadline_s))
            except asyncio.CancelledError:
                self._ended = self._cancelled = True  # the command may still run
                raise
            except NoAnswerError as error:
                if await self._is_gone():
                    raise await self._failure(error, ran=True) from error
                return RunResult(output.text(), timed_out=True)
            except AnswerTooLongError:
                return RunResult(output.text(), _TOO_LONG)
            except Exception as error:  # see run_python
                raise await self._failure(error, ran=True) from error
            timed_out = code in _KILLED and time.monotonic() - began >= deadline_s
            return RunResult(output.text(), exit_code=code, timed_out=timed_out)

    async def upload(self, path: str, data: bytes) -> None:
        """See `Sandbox.upload`."""
        if len(data) > MAX_FILE_BYTES:
            raise SandboxFileError(f"the file has {len(data)} bytes, at most {MAX_FILE_BYTES} can be written: {path}")
        whole, options = join(self._folder, path), self._as_user
        await self._with_file(path, lambda: self._client.files.write(whole, data, request_timeout=FILE_S, **options))

    async def download(self, path: str) -> bytes:
        """See `Sandbox.download`."""
        found: bytes = await self._with_file(path, lambda: self._read(path))
        return found

    async def kill(self) -> None:
        """See `Sandbox.kill`. If the service does not answer, the sandbox is ended later: see `E2BProvider.close`."""
        if self._killed:
            return
        self._ended = self._killed = True
        try:
            await within(KILL_S, self._client.kill())
        except Exception as error:  # the service failed; the rollout has ended anyway
            _LOGGER.warning("the E2B sandbox %s could not be ended yet: %s", self.id, described(error))

    def _limited(self, command: str, seconds: float) -> str:
        return limited(command, seconds)

    def _check(self) -> None:
        if self._cancelled:
            raise SandboxUnavailableError(CANCELLED)
        if self._ended:
            raise SandboxEndedError("the sandbox has ended")

    def _execute(self, code: str, deadline_s: float, output: Output) -> Coroutine[Any, Any, Execution]:  # Any: unused
        self._client.answer = Answer()
        call: Coroutine[Any, Any, Execution] = self._client.run_code(  # Any: unused
            _encodable(code),
            context=self._context,
            on_stdout=lambda message: output.add(message.line),
            on_stderr=lambda message: output.add(message.line),
            on_result=output.add_result,
            timeout=deadline_s + GRACE_S,
            **self._with_env,
        )
        return call

    async def _new_context(self) -> Context:
        try:
            return await within(
                CONTEXT_S, self._client.create_code_context(cwd=self._folder, request_timeout=CONTEXT_S)
            )
        except Exception as error:  # see run_python
            raise await self._failure(error) from error

    async def _result(self, execution: Execution, output: Output) -> RunResult:
        error = execution.error
        if error is None:
            return RunResult(output.text())
        if error.name in _INTERPRETER_ENDED:
            await self._drop_context()
            return RunResult(output.text(), state_lost=True)
        last = f"{error.name}: {error.value}"
        text = _COLOR.sub("", str(error.traceback)).rstrip()
        return RunResult(output.text(), shortened(text if text.endswith(last) else f"{text}\n{last}".lstrip()))

    async def _stopped(self, output: Output, *, too_long: bool) -> RunResult:
        """Return the result of code that was stopped. The server interrupts code when the connection ends."""
        error = _TOO_LONG if too_long else ""
        kept = await self._answers()
        if not kept:
            await self._drop_context()
        return RunResult(output.text(), error, timed_out=not too_long, state_lost=not kept)

    async def _answers(self) -> bool:
        """Whether the interpreter answers. If it answers, it has stopped the code."""
        try:
            await within(LOOK_S, self._execute("None", LOOK_S, Output()))
        except Exception:  # see run_python; `_drop_context` detects the reason
            return False
        return True

    async def _drop_context(self) -> None:
        """End the interpreter; the next call starts another one."""
        context, self._context = self._context, None
        try:
            await within(LOOK_S, self._client.remove_code_context(context))
        except Exception as error:  # see run_python
            raise await self._failure(error, ran=True) from error

    async def _run(self, command: str, output: Output, deadline_s: float) -> int:
        try:
            await self._client.commands.run(
                command,
                cwd=self._folder,
                on_stdout=output.add,
                on_stderr=output.add,
                timeout=deadline_s + 2 * GRACE_S,
                **self._as_user,
                **self._with_env,
            )
        except CommandExitException as error:
            return int(error.exit_code)
        return 0

    async def _read(self, path: str) -> bytes:
        data = bytearray()
        whole, options = join(self._folder, path), self._as_user
        async with await self._client.files.read(whole, format="stream", request_timeout=FILE_S, **options) as stream:
            async for piece in stream:
                data += piece
                if len(data) > MAX_FILE_BYTES:
                    raise SandboxFileError(f"the file has more than {MAX_FILE_BYTES} bytes: {path}")
        return bytes(data)

    async def _with_file(self, path: str, call: Callable[[], Any]) -> Any:  # Any: calls of the library
        if "\0" in path or path != _encodable(path):
            raise SandboxFileError("the path contains a null byte, or is not valid UTF-8 text")
        async with self._using:
            self._check()
            try:
                return await within(FILE_S, call())
            except SandboxFileError:
                raise
            except FileNotFoundException:
                raise SandboxFileError(f"no such file: {path}") from None
            except (RateLimitException, TimeoutException) as error:
                raise await self._failure(error) from error
            except SandboxException as error:  # a folder, no permission, no space
                raise SandboxFileError(shortened(f"{' '.join(str(error).split())}: {path}", 500)) from None
            except Exception as error:  # see run_python
                raise await self._failure(error) from error

    async def _failure(self, error: Exception, *, ran: bool = False) -> SandboxEndedError | SandboxUnavailableError:
        """Return the error for a failure: the code ended the sandbox, or the service failed."""
        if self._killed:
            return SandboxEndedError("the sandbox has ended")
        if time.monotonic() - self._started >= self._lifetime_s:
            return SandboxUnavailableError(f"the E2B sandbox reached its `lifetime_s` of {self._lifetime_s:g} seconds")
        if isinstance(error, AuthenticationException) or not await self._is_gone():
            return SandboxUnavailableError(f"the E2B sandbox {self.id} failed: {described(error)}")
        self._ended = True
        if ran:
            return SandboxEndedError("the sandbox ended while this ran")
        return SandboxUnavailableError(f"the service ended the E2B sandbox {self.id}")

    async def _is_gone(self) -> bool:
        """Whether the service says that the sandbox has ended. An error of its proxy alone does not show that."""
        try:
            await within(LOOK_S, self._client.get_info(request_timeout=LOOK_S))
        except SandboxNotFoundException:
            return True
        except Exception:  # the service fails
            return False
        return False


_TOO_LONG = f"the output had more than {MAX_ANSWER_BYTES} bytes, so the program was stopped"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can contain but UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def limited(command: str, seconds: float, mark: str = "") -> str:
    """Return `command` with a timeout. Processes that the command leaves running do not keep the connection open.

    The output goes to a file. If the file is long, only its start and its end are sent.

    Args:
        mark: `NAME=VALUE`, an environment variable by which the processes of the command are found.
    """
    half = 2 * MAX_OUTPUT_CHARS
    timeout = f"timeout --signal=KILL {seconds:.3f}{f' env {mark}' if mark else ''}"
    return (
        f"o=$(mktemp); {{ {timeout} bash -c {shlex.quote(command)} > $o 2>&1 < /dev/null; }}"
        " 2> /dev/null; s=$?;"
        f" if [ $(stat -c %s $o) -gt {2 * half} ]; then head -c {half} $o; tail -c {half} $o; else cat $o; fi;"
        " rm $o; exit $s"
    )
