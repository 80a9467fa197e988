"""Client of the judge's endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from pydantic import JsonValue

from agentrl.config.reward_sources import JudgeConfig
from agentrl.errors import ConfigError, Kind, RewardError
from agentrl.security.bounded_json import UnreadableAnswerError
from agentrl.security.bounded_json import read_json as read_remote_json
from agentrl.tools.base import InfraError
from agentrl.types.messages import ChatAnswer
from agentrl.utils.chat_endpoint import (
    ChatEndpoint,
    EndpointFailedError,
    EndpointOptions,
    EndpointRefusedError,
    InvalidAnswerError,
    api_key_of,
    without_thought,
)

T = TypeVar("T")

_FENCE = "```"


class JudgeClient:
    """Client of one endpoint. Any number of concurrent callers may share the client if they use the same event loop.

    Args:
        sleep: waits for a number of seconds.

    Raises:
        ConfigError: the URL or the model is missing, or the environment variable of the key is not set.
    """

    def __init__(self, config: JudgeConfig, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        for name in ("url", "model"):
            if getattr(config, name) is None:
                raise ConfigError.at(f"reward.judge.{name}", Kind.MISSING, f"reward judge needs `reward.judge.{name}`")
        options = EndpointOptions(
            str(config.url),
            api_key_of(config.api_key_env, "reward.judge.api_key_env"),
            wants="verdict",
            max_concurrent=config.max_concurrent,
            timeout_s=config.timeout_s,
            max_retries=config.max_retries,
        )
        self._endpoint = ChatEndpoint(options, sleep)
        self.url = self._endpoint.url

    async def ask(self, body: Mapping[str, JsonValue], read: Callable[[str], T]) -> T:
        """Send a request; return `read(text)`, where `text` is the text of the answer.

        To reject an answer, `read` raises `InvalidAnswerError`.

        Raises:
            InfraError: no valid answer after `max_retries` retries.
            RewardError: the endpoint rejects the request (its key, model or address), and no earlier request was
                answered.
        """
        try:
            return await self._endpoint.ask(body, lambda answer: read(_whole(answer)))
        except EndpointFailedError as error:
            raise InfraError(str(error)) from error
        except EndpointRefusedError as error:
            raise RewardError(f"reward.judge: {error}") from error


def read_json(text: str) -> JsonValue:
    """Parse an answer as JSON, after removing a leading thought and an enclosing code fence.

    The entire answer must be JSON, because a verdict inside prose may be only a quotation.

    Raises:
        InvalidAnswerError: the answer is not JSON.
    """
    try:
        return read_remote_json(_unfenced(without_thought(text)))
    except UnreadableAnswerError as error:
        raise InvalidAnswerError(f"expected one JSON object, got {text[:200]!r:.120} ({error})") from None


def _whole(answer: ChatAnswer) -> str:
    if answer.cut:
        raise InvalidAnswerError("the judge ran out of tokens before its verdict: raise reward.judge.max_tokens")
    return answer.text


def _unfenced(text: str) -> str:
    """Return the content of a text that is a single block fenced with ```; of any other text, only strip blanks."""
    bare = text.strip()
    first, newline, rest = bare.partition("\n")
    if not newline or first.strip() not in (_FENCE, f"{_FENCE}json") or not rest.endswith(_FENCE):
        return bare
    return rest.removesuffix(_FENCE)
