"""Session of one key: samples turns, recognises repeated requests, and enforces the limits of a rollout."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from agentrl.agent_loops.generate import Generate, Seeded
from agentrl.agent_loops.limits import Limits
from agentrl.agent_loops.recording import model_segment
from agentrl.agent_loops.tool_calls import assistant_message, parse
from agentrl.chat.base import ToolParser, parser_for
from agentrl.chat.parsers.thinking import plain_turn
from agentrl.config.run import RunConfig
from agentrl.engines.base import Completion, FinishReason, SamplingParams
from agentrl.gateway.answers import answer_of
from agentrl.gateway.base import Refusal, RequestError, TurnAnswer, TurnRequest
from agentrl.gateway.credit import CreditRule
from agentrl.gateway.layout import laid_out
from agentrl.gateway.lines import Line, lines_of
from agentrl.gateway.matching import cleaned
from agentrl.gateway.rendering import Rendered, Renderer
from agentrl.gateway.turns import Place, Tree, Turn, asked
from agentrl.types.messages import Message, image_names
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.task import Task
from agentrl.utils.seeds import ids_digest

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

_LOGGER = logging.getLogger(__name__)


class Session:
    """All conversations that a client has with one key; they form one rollout. Implements `GatewaySession`.

    A request that contains a turn of this session and then new messages continues from the tokens of that turn. Any
    other request begins a conversation. A repeated request is sampled again only if the answer was delivered and the
    client did not mark the request as a repetition.

    Args:
        sampling: sampling parameters; a request may only lower the number of tokens and add stop strings.
        call_format: name of the tool-call format that `parser` reads, for the audit.

    Attributes:
        ended: event that is set when the maximum number of turns was reached, sampling failed or was aborted, or the
            session was closed. No new turn can begin after that.
        failure: the engine's error, if sampling failed.
        hold_s: seconds for which a request waits if the rollout has ended; `close` ends the wait. During the wait, the
            agent loop stops the client. So timing does not decide what the client does after the rollout's end.
    """

    def __init__(
        self,
        chat: ChatFormat,
        parser: ToolParser,
        config: RunConfig,
        generate: Generate,
        sampling: SamplingParams,
        task: Task,
        *,
        call_format: str = "",
    ) -> None:
        self.ended = asyncio.Event()
        self.failure: Exception | None = None
        self.hold_s, self._closed = 0.0, asyncio.Event()
        self._chat, self._parser, self._generate, self._sampling = chat, parser, generate, sampling
        self._limits = Limits.of(config, sampling)
        self._max_prompt = config.data.max_prompt_length
        self._rule = CreditRule(config.rollout.gateway)
        self._renderer = Renderer(chat)
        self._tree = Tree()
        self._call_format = call_format
        self._name = f"{task.uid}/{generate.seed if isinstance(generate, Seeded) else 0}"
        self._stop: Stop | None = None
        self._prompt_refused = False
        self._num_branches = 0
        self._drawn: Counter[str] = Counter()

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        """See `GatewaySession.answer`."""
        try:
            return await self._answered(request)
        except RequestError as error:
            if error.refusal is Refusal.ENDED and self.hold_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), self.hold_s)
            raise

    async def _answered(self, request: TurnRequest) -> TurnAnswer:
        _note_ignored(request.ignored)
        place, messages = self._place(request)
        turn = self._tree.repeated(place, request) or self._begin(place, messages, request)
        assert turn.task is not None  # every turn of the tree has a task
        try:
            return await asyncio.shield(turn.task)
        except asyncio.CancelledError:
            if turn.task.cancelled():  # `close` cancelled the turn; the client did not disconnect
                raise RequestError(Refusal.ENDED, "the rollout has ended") from None
            raise

    def delivered(self, turn_id: str) -> None:
        """See `GatewaySession.delivered`."""
        self._tree.deliver(turn_id)

    def count_tokens(self, request: TurnRequest) -> int:
        """See `GatewaySession.count_tokens`."""
        place, messages = self._place(request)
        place, rendered = self._rendered(place, messages, request)
        before = len(place.parent.context) + _num_sampled(place.parent) if place.parent else 0
        return before + len(rendered.token_ids)

    def continues(self, request: TurnRequest) -> bool:
        """Whether the request contains a turn of this session."""
        return self._tree.place(cleaned(request.messages), request.tools).parent is not None

    def repeats(self, request: TurnRequest) -> bool:
        """Whether the request would get the answer to an earlier request."""
        place = self._tree.place(cleaned(request.messages), request.tools)
        return self._tree.repeated(place, request) is not None

    @property
    def stop(self) -> Stop | None:
        """The limit that ended the rollout, or else the last main conversation (see `lines_of`); None: no limit."""
        return self._reached(lines_of(self._tree))

    @property
    def num_turns(self) -> int:
        """Number of turns so far, including turns that are being sampled."""
        return len(self._tree.turns)

    def rollout(self, stop: Stop | None = None) -> Rollout:
        """Return the rollout of all sampled turns, without turns that are still being sampled.

        Args:
            stop: why the rollout ended. None: `Rollout.stop` becomes the limit that was reached, or else `finished`.
        """
        lines = lines_of(self._tree)
        rollout = laid_out(lines, self._call_format, self._renderer.images)
        self._rule.apply(lines, rollout.trajectories)
        rollout.stop = stop or self._reached(lines) or Stop.FINISHED
        return rollout

    async def close(self) -> None:
        """Cancel the turns that are being sampled."""
        self._end(None)
        self._closed.set()
        running = [turn.task for turn in self._tree.turns if turn.task and not turn.task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _place(self, request: TurnRequest) -> tuple[Place, Sequence[Message]]:
        self._renderer.images.update(request.images)
        messages = cleaned(request.messages)
        return self._tree.place(messages, request.tools), messages

    def _rendered(self, place: Place, messages: Sequence[Message], request: TurnRequest) -> tuple[Place, Rendered]:
        """Return a request's place and new tokens. If the template cannot continue the parent, drop the parent."""
        if place.parent and (new := messages[place.num_known :]):
            following = self._renderer.following(place.parent, new, request.tools)
            if following is not None:
                return place, following
        return replace(place, parent=None, num_known=0), self._renderer.root(messages, request.tools)

    def _begin(self, place: Place, messages: Sequence[Message], request: TurnRequest) -> Turn:
        """Add a turn to the tree and begin to sample it."""
        if self.ended.is_set():
            raise RequestError(Refusal.ENDED, f"the rollout has ended ({self._stop or 'closed'})")
        if len(self._tree.turns) == self._limits.multi_turn.max_assistant_turns:
            self._end(Stop.MAX_ASSISTANT_TURNS)
            raise RequestError(Refusal.ENDED, "rollout.multi_turn.max_assistant_turns is reached")
        place, rendered = self._rendered(place, messages, request)
        if (turn := self._tree.repeated(place, request)) is not None:  # `_rendered` may have changed the place
            return turn
        turn = Turn(
            *(len(self._tree.turns), place, asked(request), rendered.messages, rendered.token_ids, request.tools),
            branch=self._branch(place.parent),
            images=image_names(rendered.messages),
            image_starts=rendered.image_starts,
        )
        sampling = self._turn_sampling(turn, request)
        turn.draw = self._draw(turn)
        self._tree.add(turn)
        turn.task = asyncio.create_task(self._sampled(turn, sampling))
        turn.task.add_done_callback(_retrieve)
        return turn

    def _turn_sampling(self, turn: Turn, request: TurnRequest) -> SamplingParams:
        left = self._num_left(turn)
        own = [] if request.max_tokens is None else [request.max_tokens]
        parser = parser_for(self._parser, turn.schemas)
        stop = (*self._sampling.stop, *(parser.stop if turn.schemas else ()), *request.stop)
        most = min([self._limits.turn_tokens(left), *own])
        return replace(self._sampling, stop=tuple(dict.fromkeys(stop)), max_new_tokens=most)

    def _reached(self, lines: Sequence[Line]) -> Stop | None:
        """Return the limit that ended the rollout, else the limit that ended the main conversation's last turn."""
        refused = Stop.MAX_RESPONSE_TOKENS if self._prompt_refused else None
        return self._stop or (lines[-1].turns[-1].stop if lines else refused)

    def _num_left(self, turn: Turn) -> int:
        """Return the number of tokens that the model may sample in this turn.

        Raises:
            RequestError: the prompt is too long, or there is no room for an answer.
        """
        root, parent = turn.path[0], turn.parent
        if parent is None and len(turn.token_ids) > self._max_prompt:
            self._prompt_refused = True
            raise _too_long(self._max_prompt, len(turn.token_ids), "data.max_prompt_length")
        most = self._limits.max_response_tokens + len(root.token_ids)
        left = most - len(turn.context)
        if parent is not None and left <= 0:
            parent.stop, parent.refused = Stop.MAX_RESPONSE_TOKENS, True
            raise _too_long(most, len(turn.context), "data.max_response_length")
        return left

    def _branch(self, parent: Turn | None) -> int:
        """Return the number of the engine session: the parent's for the parent's first child, else a new number."""
        if parent is not None and not parent.children:
            return parent.branch
        self._num_branches += 1
        return self._num_branches - 1

    def _draw(self, turn: Turn) -> int:
        context = ids_digest(turn.context)
        self._drawn[context] += 1
        return self._drawn[context] - 1

    async def _sampled(self, turn: Turn, sampling: SamplingParams) -> TurnAnswer:
        """Sample and keep a turn. Raise `RequestError` if sampling fails or is aborted, for example at the deadline."""
        context = turn.context
        try:
            completion = await self._completion(turn, context, sampling)
        except Exception as error:
            self.failure = error
            self.ended.set()
            raise RequestError(Refusal.FAILED, f"sampling failed: {type(error).__name__}: {error}") from error
        await self._keep(turn, context, completion, sampling)
        if completion.finish_reason is FinishReason.ABORT:
            self._end(Stop.ABORTED)
            raise RequestError(Refusal.ENDED, "the rollout has ended: its deadline is over, or it was aborted")
        answer = answer_of(turn.parsed, completion, self._identity(turn, context), len(context), turn.asked[1])
        self._tree.answered(turn, answer)
        return answer

    async def _completion(self, turn: Turn, context: Sequence[int], sampling: SamplingParams) -> Completion:
        return await self._generate(
            context,
            sampling,
            trajectory=turn.branch,
            draw=turn.draw,
            images=[self._renderer.images[name] for each in turn.path for name in each.images],
            image_starts=[start for each in turn.path for start in each.image_starts],
        )

    async def _keep(self, turn: Turn, context: Sequence[int], completion: Completion, sampling: SamplingParams) -> None:
        """Parse and store the sampled turn."""
        left = self._limits.max_response_tokens - len(context) + len(turn.path[0].token_ids)
        cut = completion.finish_reason is not FinishReason.STOP
        most = turn.asked[0]  # the client's own limit is not a limit of the run
        by_client = cut and most == len(completion.token_ids) < self._limits.turn_tokens(left)
        turn.stop = None if by_client else self._limits.truncated_by(completion, left)
        turn.segment = model_segment(completion, sampling) if completion.token_ids else None
        if completion.routed_experts is not None:
            known = sum(len(each.experts) for each in turn.path if each.experts is not None)
            turn.experts = completion.routed_experts[known:]
        text = self._chat.opened + self._chat.text(completion.token_ids)
        parser = parser_for(self._parser, turn.schemas)
        turn.parsed = plain_turn(parser, text) if cut or not turn.schemas else await parse(parser, text)
        turn.message = assistant_message(turn.parsed, len(turn.path))

    def _identity(self, turn: Turn, context: Sequence[int]) -> str:
        """Return letters and digits that identify the turn among all rollouts.

        A repeated run must get the same ids: some clients write call ids into prompts, so new ids would change prompts.
        """
        name = f"{self._name}/{ids_digest(context)}/{turn.draw}"
        return blake2b(name.encode(), digest_size=12).hexdigest()

    def _end(self, stop: Stop | None) -> None:
        self._stop = self._stop or stop
        self.ended.set()


def _num_sampled(turn: Turn) -> int:
    return len(turn.segment) if turn.segment else 0


def _retrieve(task: asyncio.Task[TurnAnswer]) -> None:
    """Mark the task's exception as retrieved; nobody awaits the task if the client has disconnected."""
    if not task.cancelled():
        task.exception()


_NOTED: set[str] = set()


def _note_ignored(names: Sequence[str]) -> None:
    """Log each ignored parameter once."""
    for name in names:
        if name not in _NOTED:
            _NOTED.add(name)
            _LOGGER.warning("the gateway does not support '%s' in requests and ignores it", name)


def _too_long(most: int, number: int, key: str) -> RequestError:
    """Return the error for a full context. If the text has no "maximum context length", LiteLLM (a client) retries."""
    text = f"this model's maximum context length is {most} tokens, and the messages have {number} ({key})"
    return RequestError(Refusal.TOO_LONG, text)
