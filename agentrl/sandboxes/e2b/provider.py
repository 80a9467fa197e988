"""Starts E2B sandboxes, and ends unused ones."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import e2b.api
from e2b import AuthenticationException, RateLimitException, SandboxQuery
from e2b.exceptions import ServiceBusyException

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import SandboxSetup, SandboxUnavailableError
from agentrl.sandboxes.e2b.calls import NoAnswerError, described, within
from agentrl.sandboxes.e2b.sandbox import CodeInterpreter, E2BSandboxSession
from agentrl.sandboxes.e2b.settings import E2BSandbox
from agentrl.sandboxes.e2b.task_session import E2BTaskSession
from agentrl.sandboxes.owner import has_ended, own_name
from agentrl.security.redaction import remember_secret

START_S = 60.0
"""Timeout of one start in seconds, including retries."""
SWEEP_S = 60.0
"""Timeout in seconds for listing sandboxes and ending them."""
RETRIES = 5
"""Maximum retries of a request that a busy service refuses. The service says how long to wait."""
TAG, OWNER, START = "agentrl", "agentrl_owner", "agentrl_start"
"""Keys of a sandbox's metadata: a mark of agentrl, the owner process, and the start that created the sandbox."""
_REFUSED = (AuthenticationException, RateLimitException, ServiceBusyException)
"""Errors that prove that the service started no sandbox."""
_LOGGER = logging.getLogger(__name__)


class E2BProvider:
    """See `SandboxProvider`."""

    def __init__(self, settings: E2BSandbox) -> None:
        self._settings = settings
        self._owner = own_name()
        self._tasks: set[asyncio.Task[None]] = set()

    async def check(self) -> None:
        """See `SandboxProvider.check`. Also ends sandboxes whose owner, a process of this machine, was killed."""
        if not os.environ.get(self._settings.api_key_env):
            raise ConfigError.keyless(f"sandboxes of kind 'e2b' need a key: set {self._settings.api_key_env}")
        if self._settings.max_running > (most := e2b.api.max_connections):
            raise ConfigError.keyless(
                f"`max_running` is {self._settings.max_running}, but the E2B library opens at most {most} connections:"
                " set the environment variable E2B_MAX_CONNECTIONS"
            )
        try:
            ended = await within(SWEEP_S, self._sweep({TAG: "sandbox"}, lambda found: has_ended(found.get(OWNER, ""))))
        except AuthenticationException as error:
            raise ConfigError.keyless(f"E2B refuses the key in {self._settings.api_key_env}: {error}") from error
        except Exception as error:  # the library lets errors of httpx and its own parser through
            raise ConfigError.keyless(f"the E2B service cannot be used: {described(error)}") from error
        if ended:
            _LOGGER.warning("ended %d E2B sandboxes of processes that were killed", ended)

    async def start(self, setup: SandboxSetup | None = None) -> E2BSandboxSession:
        """See `SandboxProvider.start`.

        A start is not cancelled if its caller is cancelled, because the service would start the sandbox anyway.
        Instead, the sandbox is ended as soon as it has started.
        """
        client = await self._started()
        if setup is None:
            return E2BSandboxSession(client, self._settings.lifetime_s)
        session = E2BTaskSession(client, self._settings.lifetime_s, setup)
        try:
            await session.prepare()
        except BaseException:
            await session.kill()
            raise
        return session

    async def _started(self) -> CodeInterpreter:
        mark = uuid4().hex
        task = asyncio.ensure_future(self._create(mark))
        try:
            await asyncio.wait({task}, timeout=2 * START_S)  # the library may take twice the time that it is given
            if not task.done():
                raise NoAnswerError(f"no answer in {2 * START_S:g} seconds")
            return task.result()
        except asyncio.CancelledError:
            self._end_later(task, mark)
            raise
        except _REFUSED as error:
            raise SandboxUnavailableError(f"E2B started no sandbox: {described(error)}") from error
        except Exception as error:  # the library lets errors of httpx and its own parser through
            self._end_later(task, mark)
            raise SandboxUnavailableError(f"E2B started no sandbox: {described(error)}") from error

    async def close(self) -> None:
        """See `SandboxProvider.close`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SWEEP_S)
        try:
            await within(SWEEP_S, self._sweep({TAG: "sandbox", OWNER: self._owner}))
        except Exception as error:  # the service ends the sandboxes after `lifetime_s`
            _LOGGER.warning("E2B sandboxes may continue to run until their `lifetime_s`: %s", described(error))

    async def _create(self, mark: str) -> CodeInterpreter:
        created: CodeInterpreter = await CodeInterpreter.create(
            template=self._settings.template,
            timeout=self._settings.lifetime_s,
            metadata={TAG: "sandbox", OWNER: self._owner, START: mark},
            allow_internet_access=self._settings.internet,
            idempotency_key=mark,  # otherwise a repeated request would start another sandbox
            **self._connection(),
        )
        return created

    def _connection(self) -> dict[str, Any]:  # Any: options of the library
        key = os.environ[self._settings.api_key_env]
        remember_secret(key)
        return {
            "api_key": key,
            "domain": self._settings.domain,
            "api_url": self._settings.api_url,
            "sandbox_url": self._settings.sandbox_url,
            "request_timeout": START_S,
            "retries": RETRIES,
            "debug": False,  # with E2B_DEBUG, the library starts and ends nothing
        }

    def _end_later(self, start: asyncio.Task[CodeInterpreter], mark: str) -> None:
        task = asyncio.ensure_future(self._end(start, mark))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, start: asyncio.Task[CodeInterpreter], mark: str) -> None:
        """End the sandbox of a start that nobody waits for any more. A failed start may also have left a sandbox."""
        await asyncio.wait({start}, timeout=2 * START_S)
        try:
            if start.done() and not start.cancelled() and start.exception() is None:
                await within(SWEEP_S, start.result().kill())
            else:
                await within(SWEEP_S, self._sweep({TAG: "sandbox", START: mark}))
        except Exception as error:  # `close` tries again
            _LOGGER.warning("an E2B sandbox may be left until the end of the run: %s", described(error))

    async def _sweep(self, tags: dict[str, str], wanted: Callable[[Mapping[str, str]], bool] = lambda _: True) -> int:
        """End the sandboxes with these tags whose metadata `wanted` accepts; return how many were ended."""
        listed, found = CodeInterpreter.list(query=SandboxQuery(metadata=tags), **self._connection()), list[str]()
        while listed.has_next:  # read all pages first: pages may shift when sandboxes end
            found += [each.sandbox_id for each in await listed.next_items() if wanted(each.metadata)]
        kills = [CodeInterpreter.kill(each, **self._connection()) for each in found]
        results = await asyncio.gather(*kills, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return len(results)
