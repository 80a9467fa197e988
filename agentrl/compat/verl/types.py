"""Input and output types of verl's agent loops, with the same fields as in verl."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

# Any in this module: verl's fields are untyped, and users fill them freely.


class AgentLoopMetrics(BaseModel):
    """Elapsed seconds, and the number of preempted requests, under verl's names."""

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class AgentLoopOutput(BaseModel):
    """One conversation: `prompt_ids`, then `response_ids` with a mask that is 1 for sampled tokens.

    `response_logprobs` is ignored: the engine's log-probabilities are used. `reward_score`, if given, replaces the
    reward function's score.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics = Field(default_factory=AgentLoopMetrics)
    extra_fields: dict[str, Any] = {}
    mm_processor_kwargs: dict[str, Any] | None = None


class TokenOutput(BaseModel):
    """One completion, as `ServerManager.generate` returns it."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    routed_experts: Any = None
    num_preempted: int | None = None
    stop_reason: str | None = None
    extra_fields: dict[str, Any] = {}
