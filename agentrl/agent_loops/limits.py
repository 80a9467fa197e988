"""The limits of a conversation, and which of them ended it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from agentrl.agent_loops.tool_calls import refused
from agentrl.agent_loops.truncation import truncate
from agentrl.attempt import Stop
from agentrl.config.rollout import MultiTurnConfig
from agentrl.config.run import RunConfig
from agentrl.engines.base import Completion, FinishReason, SamplingParams
from agentrl.tools.toolbox import ToolResult


@dataclass(frozen=True, slots=True)
class Limits:
    """What `rollout.multi_turn` and `data.max_response_length` allow; None is no limit.

    Attributes:
        max_turn_tokens: tokens the model may sample in one turn.
        max_response_tokens: tokens after the prompt, whoever wrote them.
    """

    multi_turn: MultiTurnConfig
    max_turn_tokens: int | None
    max_response_tokens: int

    @classmethod
    def of(cls, config: RunConfig, sampling: SamplingParams, max_tool_calls: int | None = None) -> Self:
        """What `config` allows; `sampling` may allow a turn less, and a row has its own `max_tool_calls`."""
        multi_turn = config.rollout.multi_turn
        if max_tool_calls is not None:
            multi_turn = multi_turn.model_copy(update={"max_tool_calls": max_tool_calls})
        turn_limits = [limit for limit in (multi_turn.max_turn_tokens, sampling.max_new_tokens) if limit is not None]
        return cls(multi_turn, min(turn_limits, default=None), config.data.max_response_length)

    def turn_tokens(self, num_left: int) -> int:
        """How many tokens the next turn may have where the response has `num_left`."""
        return num_left if self.max_turn_tokens is None else min(self.max_turn_tokens, num_left)

    def cut_by(self, completion: Completion, num_left: int) -> Stop | None:
        """The limit that cut this turn short, where the response had `num_left` tokens before it."""
        if completion.finish_reason is FinishReason.ABORT:
            return Stop.ABORTED  # where the deadline did it, the runner says so
        if completion.finish_reason is FinishReason.LENGTH:
            by_turn = len(completion.token_ids) == self.turn_tokens(num_left) < num_left
            return Stop.MAX_TURN_TOKENS if by_turn else Stop.MAX_RESPONSE_TOKENS
        return None

    def allowed(self, num_calls: int, num_left: int | None) -> int:
        """How many of a turn's calls may run where the rollout has `num_left`."""
        return min(num_calls, self.multi_turn.max_parallel_calls, *([] if num_left is None else [num_left]))

    def refusal(self, position: int, num_left: int | None) -> ToolResult:
        """What the call at `position` of its turn is answered, when it is beyond the limits."""
        if num_left is not None and position >= num_left:
            return refused("no tool calls are left, this one was not run; answer without tools")
        return refused(f"calls in one turn are limited to {self.multi_turn.max_parallel_calls}, this one was not run")

    def shortened(self, result: ToolResult) -> ToolResult:
        """The answer as the model may read it."""
        length, side = self.multi_turn.max_tool_response_length, self.multi_turn.tool_response_truncate_side
        text = truncate(result.text, length, side)
        return result if text is result.text else replace(result, text=text)
