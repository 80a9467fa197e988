"""An engine that returns scripted replies, for tests, examples, and benchmarks without the cost of sampling."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Protocol

from agentrl.capabilities import EngineSpec
from agentrl.config.run import RunConfig
from agentrl.engines.base import COUNTERS, Completion, FinishReason, GenerateRequest, PauseMode, WeightStream
from agentrl.engines.torch.stopping import matched_stop
from agentrl.registry import load_object
from agentrl.types.trajectory import VersionSpan

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

Answer = str | Sequence[int]
"""A reply: token ids, or text that the engine encodes."""

NOTHING = Completion((), (), (), FinishReason.ABORT)


class ScriptTokenizer(Protocol):
    """Tokenizer methods needed for text replies and stop strings."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids."""
        ...


class ScriptedEngine:
    """Engine that returns the replies of `reply`. It has no KV, so `release` does nothing.

    Args:
        reply: a function of the request, or a list of replies. The list is used in the order of the requests and
            repeats after its end. A reply is token ids or text.
        tokenizer: needed for text replies and for stop strings.
        of_text: if True, `reply` is a function of the decoded context.
        stop_token_id: stop token of requests without `stop_token_ids`; None: no stop token. If a reply contains none of
            its request's stop tokens, the request's first stop token is appended.
        logprob: log-probability reported for every token.
        delay_s: delay of each reply in seconds.
    """

    def __init__(
        self,
        reply: Callable[[GenerateRequest], Answer] | Callable[[str], Answer] | Sequence[Answer],
        *,
        tokenizer: ScriptTokenizer | None = None,
        of_text: bool = False,
        stop_token_id: int | None = None,
        logprob: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        self.version = 0
        self._reply = _function_of_request(reply, tokenizer if of_text else None)
        self._tokenizer, self._stop_token_id = tokenizer, stop_token_id
        self._logprob, self._delay_s = logprob, delay_s
        self._counters: Counter[str] = Counter()
        self._resumed: asyncio.Event | None = None  # not None only while paused
        self._in_place = False
        self._answering: set[asyncio.Task[None]] = set()
        self._sessions: dict[asyncio.Task[None], str] = {}
        self._closed = False

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the scripted reply; see `Engine.generate`."""
        if not request.token_ids:
            raise ValueError("the context is empty")
        if request.images:
            raise ValueError("the scripted engine does not support images")
        disturbed = (self._delay_s or self._resumed) and not await self._wait(request)
        if self._closed or disturbed:
            return NOTHING
        return self._completion(request)

    async def load_weights(self, weights: WeightStream, version: int) -> None:
        """Set the policy version of later replies; there are no weights."""
        self.version = version

    async def pause(self, mode: PauseMode = "drain") -> None:
        """Make new requests wait; `drain` also waits for the running requests."""
        self._in_place = mode != "drain"
        self._resumed = self._resumed or asyncio.Event()
        if mode == "drain" and self._answering:
            await asyncio.wait(self._answering)

    async def resume(self) -> None:
        """Continue after `pause`."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    async def abort(self, session: str) -> None:
        """End the session's requests with empty completions."""
        self._cancel([task for task, name in self._sessions.items() if name == session])

    async def release(self, session: str) -> None:
        """Do nothing: there is no KV."""

    async def close(self) -> None:
        """End all requests with empty completions."""
        self._closed = True
        self._cancel(list(self._sessions))

    def metrics(self) -> dict[str, float]:
        """Counters since the start; forwarded and cached tokens are always 0."""
        return {
            **{name: float(self._counters[name]) for name in COUNTERS},
            "running_requests": float(len(self._sessions)),
        }

    async def _wait(self, request: GenerateRequest) -> bool:
        """Wait for the end of the pause and the delay. Return False if the request was aborted or timed out."""
        task = asyncio.ensure_future(self._turn(self._resumed))
        self._sessions[task] = request.session
        if self._resumed is None:
            self._answering.add(task)  # added here, because a pause may begin before the task's first step
        try:
            await asyncio.wait({task}, timeout=request.deadline_s)
            return task.done() and not task.cancelled()
        finally:
            task.cancel()
            self._answering.discard(task)
            del self._sessions[task]

    async def _turn(self, held: asyncio.Event | None) -> None:
        if held is not None:
            await held.wait()
            self._answering.add(_this_task())
        await asyncio.sleep(self._delay_s)
        while self._resumed is not None and self._in_place:
            await self._resumed.wait()

    def _cancel(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()

    def _completion(self, request: GenerateRequest) -> Completion:
        token_ids, reason, matched = self._cut(request, self._token_ids(request))
        self._counters["prompt_tokens"] += len(request.token_ids)
        self._counters["sampled_tokens"] += len(token_ids)
        spans = (VersionSpan(self.version, len(token_ids)),) if token_ids else ()
        return Completion(token_ids, [self._logprob] * len(token_ids), spans, reason, 0, matched)

    def _token_ids(self, request: GenerateRequest) -> list[int]:
        answer = self._reply(request)
        if not isinstance(answer, str):
            return list(answer)
        if self._tokenizer is None:
            raise ValueError("a reply in text needs a tokenizer, but this engine has none")
        return self._tokenizer.encode(answer, add_special_tokens=False)

    def _cut(self, request: GenerateRequest, token_ids: list[int]) -> tuple[list[int], FinishReason, str | None]:
        """Cut the reply where sampling would have ended: at a stop token, a stop string or `max_new_tokens`."""
        sampling = request.sampling
        own = () if self._stop_token_id is None else (self._stop_token_id,)
        stops = sampling.stop_token_ids or own
        if stops and not set(stops) & set(token_ids):
            token_ids = [*token_ids, stops[0]]
        for length in range(1, len(token_ids) + 1):
            matched = self._matched(token_ids[:length], sampling.stop)
            if matched is not None or token_ids[length - 1] in stops:
                return token_ids[:length], FinishReason.STOP, matched
            if length == sampling.max_new_tokens and length < len(token_ids):
                return token_ids[:length], FinishReason.LENGTH, None
        return token_ids, FinishReason.STOP, None

    def _matched(self, token_ids: Sequence[int], stops: Sequence[str]) -> str | None:
        if not stops:
            return None
        if self._tokenizer is None:
            raise ValueError("stop strings need a tokenizer, but this engine has none")
        return matched_stop(self._tokenizer, token_ids, stops)


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None  # only called inside a task
    return task


def _function_of_request(
    reply: Callable[[GenerateRequest], Answer] | Callable[[str], Answer] | Sequence[Answer],
    tokenizer: ScriptTokenizer | None,
) -> Callable[[GenerateRequest], Answer]:
    if not callable(reply):
        replies, turn = list(reply), count()
        return lambda request: replies[next(turn) % len(replies)]
    if tokenizer is not None:
        return lambda request: reply(tokenizer.decode(request.token_ids, skip_special_tokens=False))  # type: ignore[arg-type]  # of_text
    return reply  # type: ignore[return-value]  # not of_text


async def load(config: RunConfig, chat: ChatFormat) -> ScriptedEngine:
    """Create the engine; `rollout.script_path` names the function that returns its replies."""
    reply = load_object(str(config.rollout.script_path))
    return ScriptedEngine(reply, tokenizer=chat.tokenizer, of_text=True, stop_token_id=chat.stop_token_ids[0])


SPEC = EngineSpec(load=load, options=frozenset({"script_path"}), deterministic=True)
