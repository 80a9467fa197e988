"""One conversation with the model, as tokens and as messages, with its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from agentrl.agent_loops.context import ConversationContext
from agentrl.agent_loops.further import Further, served
from agentrl.agent_loops.operations import RecordedOperation, opening
from agentrl.agent_loops.recording import model_segment
from agentrl.agent_loops.resume import ResumePoint
from agentrl.agent_loops.tool_calls import (
    aborted,
    as_shown,
    assistant_message,
    parse,
    raise_failures,
    refused,
    run_calls,
    tokens_of_answers,
    tool_calls,
    tool_messages,
    with_images,
)
from agentrl.chat.base import ParsedCall, ParsedTurn, parser_for
from agentrl.chat.parsers.thinking import plain_turn
from agentrl.engines.base import Completion, SamplingParams
from agentrl.tools.result import ToolResult
from agentrl.types.messages import Message, ToolSchema, image_names
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Rollout, Stop, ToolCall, TurnReward
from agentrl.types.trajectory import Author, Segment, Trajectory
from agentrl.utils.images import content_hash


class Conversation:
    """A conversation with the model. `model_turn`, `tool_turn`, `user_turn` and `say` each append to its trajectory.

    With `rollout.multi_turn.thinking=strip`, a further trajectory may begin after a turn: see `agent_loops.further`.

    The conversation enforces the limits of `rollout.multi_turn` and `data.max_response_length`:

    - A turn that reached a length limit is kept. Tool calls in this turn are not run.
    - Answers that leave no token for the model's reply are not appended; the conversation stops with
      `max_response_tokens`. So a response never has more than `data.max_response_length` tokens.
    - Calls beyond `max_parallel_calls` or `max_tool_calls` are answered with an error that the model reads. If the
      model calls a tool again after an error about `max_tool_calls`, the conversation stops with `max_tool_calls`.
    - Calls of the last allowed turn are not run (`limit_error`). The simulated user still scores this turn.

    Attributes:
        schemas: list of `ToolSchema`, the tools of this rollout.
        trajectory: the `Trajectory` so far; `trajectory.messages` are all messages, `trajectory.token_ids` the context.
        stop: the `Stop` reason; None while the conversation can continue.
        tool_calls: list of `ToolCall`, all calls so far, with outcome, result and reward.
        turn_rewards: list of `TurnReward`, the scores of the simulated user so far.
        last_turn: position of the model's last turn: (index of the trajectory, index of the segment in the trajectory).
        num_running_calls: number of calls that run now and count towards `max_tool_calls`.
        form: format of the first messages and of tool answers, for the audit: `chat`, `react`, or `own` if a subclass
            overrides the methods that write them.
    """

    form: ClassVar[str] = "chat"

    def __init__(self, bindings: ConversationContext, messages: Sequence[Message]) -> None:
        self._number, trajectory = bindings.new_trajectory(())
        self.trajectory = trajectory
        self.stop: Stop | None = None
        self.num_running_calls = 0
        self.tool_calls: list[ToolCall] = []
        self.turn_rewards: list[TurnReward] = []
        self._bound = bindings
        self.schemas: Sequence[ToolSchema] = bindings.tools.schemas if bindings.tools else ()
        self._parser = parser_for(bindings.parser, self.schemas)
        self._limits = bindings.limits
        self._further: Further | None = None  # becomes `trajectory` at the end of the current operation
        self._num_turns = 0  # counting the turns again each time would take quadratic time
        self._num_user_turns = 0
        self._last_id = next(iter(bindings.chat.stop_token_ids), None)  # last token of the model's last turn
        self.last_turn = self._number, 0
        self._warned_no_calls_left = False
        self._image_starts: list[int] = []
        bindings.conversations.append(self)
        self.trajectory.messages += (first := self.opening(messages))
        prompt_ids = bindings.chat.start(first, self.template_schemas, bindings.images)
        self._opening_lengths = len(first), len(prompt_ids)  # number of messages, number of tokens
        self._append_segment(Author.PROMPT, prompt_ids, image_names(first))
        self._stop_if(self.num_tokens_left <= 0, Stop.MAX_RESPONSE_TOKENS)

    @property
    def template_schemas(self) -> Sequence[ToolSchema]:
        """Tools that the chat template shows; a subclass may return none and describe them in `opening`."""
        return self.schemas

    def opening(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the first messages, made from the task's prompt; override this method to add instructions."""
        return messages

    def answer_messages(self, calls: Sequence[ParsedCall], texts: Sequence[str]) -> list[Message]:
        """Return the messages with the answers to `calls`; override this method for another role or wording."""
        return tool_messages(calls, texts, self._num_turns)

    def completed(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages to append after a tool or user turn; override this method to add text."""
        return messages

    async def model_turn(self) -> ParsedTurn | None:
        """Sample a model turn and append it. Return None if the conversation has stopped; `stop` is the reason."""
        with self._operation(OperationKind.MODEL_TURN):
            self._stop_if(self._no_turn_left, Stop.MAX_ASSISTANT_TURNS)
            if self.stop is not None:
                await asyncio.sleep(0)  # so that the deadline can cancel a loop that calls `model_turn` forever
                return None
            stop = self._parser.stop if self.schemas else ()
            sampling = self._limits.turn_sampling(self._bound.sampling, stop, self.num_tokens_left)
            completion = await self._bound.sample(self.trajectory, self._number, sampling, self._image_starts)
            self.stop = self._limits.truncated_by(completion, self.num_tokens_left)
            turn = await self._append_model(completion, sampling)
        return turn if self.stop is None else None

    async def tool_turn(self, turn: ParsedTurn) -> bool:
        """Run the calls of `turn` concurrently, and append the answers in call order; without calls, append nothing.

        Return False if the conversation has stopped.

        Raises:
            InfraError: a call failed for reasons outside the policy. All results are recorded before it is raised.
            ConfigError: a tool returned an image, and the model does not accept images.
        """
        with self._operation(OperationKind.TOOL_TURN):
            return await self._tool_turn(turn)

    async def user_turn(self) -> bool:
        """Append the simulated user's answer. Return False if there is no user, if the user is done, or at a limit."""
        with self._operation(OperationKind.USER_TURN):
            return await self._user_turn()

    def say(self, text: str) -> bool:
        """Append `text` as a user message, without a simulated user. Return False if the conversation has stopped."""
        with self._operation(OperationKind.SAY):
            return self._say(text)

    def restart(self, messages: Sequence[Message]) -> Conversation:
        """Return a new conversation whose prompt is `messages` (for compaction). Do not use `self` afterwards.

        Earlier turns still count towards the limits. For a sub-agent with separate limits, use `AgentLoop.open`.
        """
        successor = type(self)(self._bound, self._bound.chat.history(messages))
        successor._num_turns, successor._num_user_turns = self._num_turns, self._num_user_turns
        successor._warned_no_calls_left = self._warned_no_calls_left
        successor.record_opening(OperationKind.RESTART, parent=self._number)
        return successor

    def resume_from(self, resume_point: ResumePoint) -> None:
        """Restore the state that a saved rollout had before a model turn, including the counts of turns and calls."""
        messages = resume_point.messages_after(len(self.trajectory.messages))
        self.trajectory = self._bound.trajectories[self._number] = Trajectory((), messages)
        self._image_starts = []
        for segment in resume_point.segments:
            self._append_segment(segment.author, segment.token_ids, segment.media)
        self.tool_calls, self.turn_rewards = list(resume_point.tool_calls), list(resume_point.turn_rewards)
        self._num_turns = resume_point.num_turns
        self._num_user_turns = resume_point.num_user_turns
        self._warned_no_calls_left = resume_point.had_refused_calls(self._num_calls_left)
        self._stop_if(self.num_tokens_left <= 0, Stop.MAX_RESPONSE_TOKENS)

    def record_opening(self, kind: OperationKind, parent: int | None = None, segment: int | None = None) -> None:
        """Record the opening: after trajectory `parent`, or for a sub-agent, by the turn at `segment` in `parent`."""
        self._bound.operations.append(opening(self, self._number, self._bound, kind, parent, segment))

    def rollout(self) -> Rollout:
        """Return the rollout: all conversations that the loop opened, with the stop reason of this conversation."""
        return self._bound.rollout(self.stop or Stop.FINISHED)

    async def _tool_turn(self, turn: ParsedTurn) -> bool:
        self._stop_if(self._no_turn_left, Stop.MAX_ASSISTANT_TURNS)
        self._stop_if(self._warned_no_calls_left, Stop.MAX_TOOL_CALLS)
        if self.stop is not None:
            self._record(turn.calls, [refused("not run, the conversation has ended")] * len(turn.calls))
        if self.stop is not None or not turn.calls:
            return self.stop is None
        answers = zip(turn.calls, await self._answers(turn.calls), strict=True)
        results = [self._limits.shortened(as_shown(call, result, self._bound.chat)) for call, result in answers]
        self._record(turn.calls, results, self._append_answers(turn.calls, results))
        raise_failures(turn.calls, results)
        self._stop_if(self._bound.tools is not None and self._bound.tools.ended, Stop.ENVIRONMENT_DONE)
        return self.stop is None

    async def _user_turn(self) -> bool:
        self._stop_if(self._bound.interaction is None, Stop.FINISHED)
        self._stop_if(self._num_user_turns == self._limits.multi_turn.max_user_turns, Stop.MAX_USER_TURNS)
        if self.stop is not None or self._bound.interaction is None:
            return False
        answer = await self._bound.interaction.respond(self.trajectory.messages)
        self.turn_rewards.append(TurnReward(*self.last_turn, "interaction", answer.score, answer.observation_key))
        self._num_user_turns += 1
        self._stop_if(answer.done, Stop.INTERACTION_ENDED)
        return self._say(answer.text)

    def _say(self, text: str) -> bool:
        self._stop_if(self._no_turn_left, Stop.MAX_ASSISTANT_TURNS)
        if self.stop is None:
            self._append(Author.USER, [Message(role="user", content=text)])
        return self.stop is None

    def _operation(self, kind: OperationKind) -> RecordedOperation:
        return RecordedOperation(self, self._number, kind, self._bound.operations, self._enter_further)

    def _enter_further(self) -> None:
        """If the operation that just ended has prepared a further trajectory, continue in this trajectory."""
        if (further := self._further) is None:
            return
        parent, self._further, self._image_starts = self._number, None, []
        self._number, self.trajectory = self._bound.new_trajectory(further.messages)
        self._append_segment(Author.PROMPT, further.token_ids, image_names(further.messages))
        self.record_opening(OperationKind.RENDER, parent)

    def _stop_if(self, reached: bool, stop: Stop) -> None:
        if reached and self.stop is None:
            self.stop = stop

    @property
    def num_tokens_left(self) -> int:
        """Number of tokens, sampled or not, that may still be appended to the trajectory."""
        return self._limits.tokens_left(len(self.trajectory.token_ids), self._opening_lengths[1])

    @property
    def _no_turn_left(self) -> bool:
        return self._num_turns == self._limits.multi_turn.max_assistant_turns

    @property
    def _num_calls_left(self) -> int | None:
        """Number of calls that the rollout may still make; None: no limit."""
        if (limit := self._limits.multi_turn.max_tool_calls) is None:
            return None
        return limit - self._bound.num_calls

    async def _append_model(self, completion: Completion, sampling: SamplingParams) -> ParsedTurn:
        self.last_turn = self._number, len(self.trajectory.segments)
        self.trajectory.append(model_segment(completion, sampling))
        self.trajectory.keep_routed_experts(completion.routed_experts)
        self._num_turns += 1
        self._last_id = next(reversed(completion.token_ids), None)
        text = self._bound.chat.opened + self._bound.chat.text(completion.token_ids)
        turn = plain_turn(self._parser, text)  # a truncated turn, or a turn without tools, has no calls
        try:
            if self.stop is None and self.schemas:
                turn = await parse(self._parser, text)
        finally:
            self.trajectory.messages.append(assistant_message(turn, self._num_turns))
        return turn

    async def _answers(self, calls: Sequence[ParsedCall]) -> list[ToolResult]:
        tools, num_left = self._bound.tools, self._num_calls_left
        assert tools is not None  # without tools no turn has calls
        self.num_running_calls = num_allowed = self._limits.allowed(len(calls), num_left)
        results = [aborted()] * len(calls)
        tools.data.messages = self.trajectory.messages  # for tools with the argument `agent_data`
        tools.data.images = self._bound.images
        try:
            await run_calls(tools, calls[:num_allowed], results)
        except asyncio.CancelledError:
            self._record(calls, results)
            raise
        self._warned_no_calls_left = num_left is not None and len(calls) > num_left
        beyond = [self._limits.refusal(position, num_left) for position in range(num_allowed, len(calls))]
        return results[:num_allowed] + beyond

    def _append_answers(self, calls: Sequence[ParsedCall], results: Sequence[ToolResult]) -> list[int]:
        messages = self.answer_messages(calls, [result.text for result in results])
        messages = with_images(messages, [self._images(result) for result in results])
        num_added = self._append(Author.TOOL, messages)
        return tokens_of_answers(messages, len(calls), num_added, lambda some: len(self._render(some)))

    def _append(self, author: Author, messages: Sequence[Message]) -> int:
        """Append messages and return their number of tokens. If no token is left for a reply, stop and return 0."""
        messages = self.completed(messages)
        following, token_ids, added = self._addition(messages)
        if added >= self.num_tokens_left:
            self.stop = Stop.MAX_RESPONSE_TOKENS
            return 0
        if isinstance(following, Further):
            self._further = following
        else:
            self._append_segment(author, token_ids, image_names(messages))
            self.trajectory.messages.extend(messages)
        return len(token_ids)

    def _addition(self, messages: Sequence[Message]) -> tuple[list[int] | Further | None, list[int], int]:
        """Return (result of `served`, tokens of `messages`, number of tokens by which the context grows)."""
        following = served(self._bound, self.trajectory, messages, self.template_schemas, self._opening_lengths[0])
        token_ids = following if isinstance(following, list) else self._render(messages)
        added = following.num_added(self.trajectory) if isinstance(following, Further) else len(token_ids)
        return following, token_ids, added

    def _append_segment(self, author: Author, token_ids: Sequence[int], media: Sequence[str]) -> None:
        data = [self._bound.images[name] for name in media]
        start = len(self.trajectory.token_ids)
        self._image_starts += [start + place for place in self._bound.chat.image_starts(token_ids, data)]
        self.trajectory.append(Segment(author, token_ids, media=tuple(media)))
        self.trajectory.images.update(zip(media, data, strict=True))

    def _images(self, result: ToolResult) -> list[str]:
        """Register an answer's images for use in messages; return their names."""
        images = {content_hash(data): data for data in result.images}
        self._bound.images.update(images)
        return [content_hash(data) for data in result.images]

    def _render(self, messages: Sequence[Message]) -> list[int]:
        chat, own, schemas = self._bound.chat, self.trajectory.messages, self.template_schemas
        closed = chat.is_closed(self._last_id, messages)
        return chat.extend(messages, schemas, turn_closed=closed, images=self._bound.images, history=own)

    def _record(
        self, calls: Sequence[ParsedCall], results: Sequence[ToolResult], num_tokens: Sequence[int] | None = None
    ) -> None:
        self.num_running_calls, added = 0, num_tokens or [0] * len(calls)
        self.tool_calls += tool_calls(calls, results, added, turn=self._num_turns - 1, trajectory=self._number)
