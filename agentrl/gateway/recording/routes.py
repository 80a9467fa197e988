"""The HTTP API that opens and ends rollouts; only the admin key may use it."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web

from agentrl.gateway.recording.requests import MAX_BODY, BodyError, read_end, read_open
from agentrl.gateway.recording.rollouts import Ended, RunningRollout, RunningRollouts, TooManyError


class RolloutRoutes:
    """Handlers of `POST /rollouts`, `GET /rollouts` and `POST /rollouts/KEY/end`.

    Args:
        base_url: key -> the base URL for the client of a rollout.
        failed: called with the error if a file cannot be written.
    """

    def __init__(
        self,
        rollouts: RunningRollouts,
        admin_key: str,
        base_url: Callable[[str], str],
        failed: Callable[[OSError], object],
    ) -> None:
        self._rollouts = rollouts
        self._admin_key = admin_key
        self._base_url = base_url
        self._failed = failed

    def add_to(self, app: web.Application) -> None:
        """Add the routes to an application."""
        app.router.add_post("/rollouts", self.open)
        app.router.add_get("/rollouts", self.running)
        app.router.add_post("/rollouts/{key}/end", self.end)

    async def open(self, request: web.Request) -> web.Response:
        """Open the rollouts of a task."""
        if not self._is_admin(request):
            return _refused()
        try:
            body = read_open(await _body(request))
            opened = self._rollouts.open_group(body.facts, body.keys)
        except TooManyError as error:
            return _error(HTTPStatus.TOO_MANY_REQUESTS, str(error))
        except ValueError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        places = [{"key": each.key, "base_url": self._base_url(each.key)} for each in opened]
        return web.json_response({"uid": opened[0].group.task.uid, "rollouts": places}, status=HTTPStatus.CREATED)

    async def running(self, request: web.Request) -> web.Response:
        """List the running rollouts."""
        if not self._is_admin(request):
            return _refused()
        now = asyncio.get_running_loop().time()
        return web.json_response({"rollouts": [_shown(each, now) for each in self._rollouts]})

    async def end(self, request: web.Request) -> web.Response:
        """End a rollout; answer when it is saved."""
        if not self._is_admin(request):
            return _refused()
        try:
            rewards = read_end(await _body(request))
        except BodyError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        if (running := self._rollouts.find(request.match_info["key"])) is None:
            return _error(HTTPStatus.NOT_FOUND, "no running rollout has this key: it may have ended")
        try:
            return web.json_response(_saved(await asyncio.shield(self._rollouts.end(running, rewards=rewards))))
        except OSError as error:
            self._failed(error)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"the rollout cannot be saved: {error.strerror}")

    def _is_admin(self, request: web.Request) -> bool:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        given = key if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode(), self._admin_key.encode()) and "Origin" not in request.headers


async def _body(request: web.Request) -> bytes:
    body = await request.content.read(MAX_BODY + 1)
    while len(body) <= MAX_BODY and (more := await request.content.read(MAX_BODY + 1 - len(body))):
        body += more
    if len(body) > MAX_BODY:
        raise BodyError(f"the body has more than {MAX_BODY} bytes")
    return body


def _shown(running: RunningRollout, now: float) -> dict[str, object]:
    return {
        "key": running.key,
        "uid": running.group.task.uid,
        "rollout": running.number,
        "num_turns": running.session.num_turns,
        "idle_s": 0.0 if running.num_in_flight else round(now - running.last_used, 3),
    }


def _saved(ended: Ended) -> dict[str, object]:
    trajectories = ended.rollout.trajectories
    return {
        "uid": ended.uid,
        "rollout": ended.number,
        "stop": ended.rollout.stop.value,
        "num_turns": sum(each.num_turns for each in trajectories),
        "num_sampled_tokens": sum(each.num_trained_tokens for each in trajectories),
        "file": None if ended.file is None else str(ended.file),
    }


def _refused() -> web.Response:
    return _error(HTTPStatus.UNAUTHORIZED, "expected the admin key: Authorization: Bearer KEY")


def _error(status: HTTPStatus, text: str) -> web.Response:
    return web.json_response({"error": {"message": text}}, status=status)
