"""The HTTP API that opens and ends rollouts; every request needs the admin key."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from agentrl.gateway.recording.requests import MAX_BODY, BodyError, read_end, read_open
from agentrl.gateway.recording.rollouts import Ended, KeysError, RunningRollout, RunningRollouts, TooManyError


class RolloutRoutes:
    """Answers `POST /rollouts`, `GET /rollouts` and `POST /rollouts/KEY/end`.

    Args:
        admin_key: key that a request to these routes must contain.
        failed: function that is called with the error if a file cannot be written.
    """

    def __init__(self, rollouts: RunningRollouts, admin_key: str, failed: Callable[[OSError], object]) -> None:
        self._rollouts = rollouts
        self._admin_key = admin_key
        self._failed = failed

    async def __call__(self, request: web.BaseRequest) -> web.Response | None:
        """Answer a request; None if its path is not one of these routes."""
        first, *rest = request.path.strip("/").split("/")
        if first != "rollouts":
            return None
        if not self._is_admin(request):
            return _error(HTTPStatus.UNAUTHORIZED, "expected the admin key: Authorization: Bearer KEY")
        try:
            if not rest and request.method == "GET":
                return self._listed()
            if not rest and request.method == "POST":
                return self._opened(await _body(request))
            if rest[1:] == ["end"] and request.method == "POST":
                return await self._ended(rest[0], await _body(request))
        except BodyError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        return _error(HTTPStatus.NOT_FOUND, "endpoints: POST /rollouts, GET /rollouts and POST /rollouts/KEY/end")

    def _opened(self, body: bytes) -> web.Response:
        asked = read_open(body)
        try:
            opened = self._rollouts.open_group(asked.facts, asked.keys)
        except TooManyError as error:
            return _error(HTTPStatus.TOO_MANY_REQUESTS, str(error))
        except KeysError as error:
            return _error(HTTPStatus.BAD_REQUEST, f"keys: {error}")
        places = [{"key": each.key, "base_url": each.address.openai_base_url} for each in opened if each.address]
        return web.json_response({"uid": opened[0].group.task.uid, "rollouts": places}, status=HTTPStatus.CREATED)

    def _listed(self) -> web.Response:
        now = asyncio.get_running_loop().time()
        return web.json_response({"rollouts": [_shown(each, now) for each in self._rollouts]})

    async def _ended(self, key: str, body: bytes) -> web.Response:
        rewards = read_end(body)
        if (running := self._rollouts.find(key)) is None:
            return _error(HTTPStatus.NOT_FOUND, "no running rollout has this key: it may have ended")
        try:
            return web.json_response(_saved(await asyncio.shield(self._rollouts.end(running, rewards=rewards))))
        except OSError as error:
            self._failed(error)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"the rollout cannot be saved: {error.strerror}")

    def _is_admin(self, request: web.BaseRequest) -> bool:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        given = key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._admin_key.encode())


async def _body(request: web.BaseRequest) -> bytes:
    body = b""
    try:
        while len(body) <= MAX_BODY and (more := await request.content.read(MAX_BODY + 1 - len(body))):
            body += more
    except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError) as error:
        raise BodyError(f"the body cannot be read: {type(error).__name__}") from None
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


def _error(status: HTTPStatus, text: str) -> web.Response:
    return web.json_response({"error": {"message": text}}, status=status)
