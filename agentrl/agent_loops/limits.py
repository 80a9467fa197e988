"""Limits of a conversation, and the stop reasons for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from agentrl.agent_loops.tool_calls import refused
from agentrl.config.rollout import MultiTurnConfig
from agentrl.config.run import RunConfig
from agentrl.engines.base import Completion, FinishReason, SamplingParams
from agentrl.tools.result import ToolResult
from agentrl.types.rollout import Stop


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits from `rollout.multi_turn` and `data.max_response_length`; None: no limit.

    Attributes:
        max_turn_tokens: maximum number of tokens that the model may sample in one turn.
        max_response_tokens: maximum number of tokens after the prompt, sampled or not.
        max_context_tokens: maximum number of tokens of prompt and response. This limit is reached before
            `max_response_tokens` only if the loop made the prompt longer than `data.max_prompt_length`.
    """

    multi_turn: MultiTurnConfig
    max_turn_tokens: int | None
    max_response_tokens: int
    max_context_tokens: int

    @classmethod
    def of(cls, config: RunConfig, sampling: SamplingParams, max_tool_calls: int | None = None) -> Self:
        """Read the limits from `config`. `sampling` may lower the limit per turn; a row may set `max_tool_calls`."""
        multi_turn = config.rollout.multi_turn
        if max_tool_calls is not None:
            multi_turn = multi_turn.model_copy(update={"max_tool_calls": max_tool_calls})
        turn_limits = [limit for limit in (multi_turn.max_turn_tokens, sampling.max_new_tokens) if limit is not None]
        return cls(
            multi_turn, min(turn_limits, default=None), config.data.max_response_length, config.data.max_sequence_length
        )

    def with_values(self, values: Mapping[str, int]) -> Self:
        """Return a copy of the limits, in which `values` replace the limits of `rollout.multi_turn`."""
        multi_turn = self.multi_turn.model_copy(update=dict(values))
        return replace(self, multi_turn=multi_turn, max_turn_tokens=values.get("max_turn_tokens", self.max_turn_tokens))

    def tokens_left(self, num_tokens: int, num_prompt: int) -> int:
        """Number of tokens that may be appended to `num_tokens` tokens; the first `num_prompt` are the prompt."""
        return min(num_prompt + self.max_response_tokens, self.max_context_tokens) - num_tokens

    def turn_tokens(self, num_left: int) -> int:
        """Maximum number of tokens of the next turn if `num_left` more tokens may be appended to the trajectory."""
        return num_left if self.max_turn_tokens is None else min(self.max_turn_tokens, num_left)

    def turn_sampling(self, sampling: SamplingParams, stop: Sequence[str], num_left: int) -> SamplingParams:
        """Return the sampling parameters of the next turn. The turn also ends at the texts in `stop`."""
        return replace(sampling, stop=(*sampling.stop, *stop), max_new_tokens=self.turn_tokens(num_left))

    def truncated_by(self, completion: Completion, num_left: int) -> Stop | None:
        """Return why the turn was truncated, None if it was not; before the turn, `num_left` tokens were allowed."""
        if completion.finish_reason is FinishReason.ABORT:
            return Stop.ABORTED  # if the deadline was the cause, the runner changes ABORTED to DEADLINE
        if completion.finish_reason is FinishReason.LENGTH:
            by_turn = len(completion.token_ids) == self.turn_tokens(num_left) < num_left
            return Stop.MAX_TURN_TOKENS if by_turn else Stop.MAX_RESPONSE_TOKENS
        return None

    def allowed(self, num_calls: int, num_left: int | None) -> int:
        """Return how many of a turn's calls may run if the rollout has `num_left` calls left.

        `num_left` may be negative if a saved rollout is continued with a lower limit.
        """
        left = [] if num_left is None else [max(0, num_left)]
        return min(num_calls, self.multi_turn.max_parallel_calls, *left)

    def refusal(self, position: int, num_left: int | None) -> ToolResult:
        """Return the error that answers a call beyond the limits; `position` is the call's position in its turn."""
        if num_left is not None and position >= num_left:
            return refused("no tool calls are left, this one was not run; answer without tools")
        return refused(f"calls in one turn are limited to {self.multi_turn.max_parallel_calls}, this one was not run")

    def shortened(self, result: ToolResult) -> ToolResult:
        """Return the answer, with its text truncated to `max_tool_response_length`."""
        length, side = self.multi_turn.max_tool_response_length, self.multi_turn.tool_response_truncate_side
        text = truncate(result.text, length, side)
        return result if text is result.text else replace(result, text=text)


MARKER = "...(truncated)..."


def truncate(text: str, max_chars: int, side: Literal["left", "middle", "right"]) -> str:
    """Return `text` if it has at most `max_chars` characters, else the kept characters with a marker at the cut.

    `side` is the side that is cut: left keeps the tail, right keeps the head, middle keeps both ends:

        truncate("abcdef", 4, "left") = "...(truncated)...cdef"     "middle" = "ab...(truncated)...ef"

    `left` and `right` mean the same as in verl since May 2026. In earlier versions of verl, they were swapped.
    """
    if len(text) <= max_chars:
        return text
    num_head = {"left": 0, "middle": (max_chars + 1) // 2, "right": max_chars}[side]
    return text[:num_head] + MARKER + text[len(text) - (max_chars - num_head) :]
