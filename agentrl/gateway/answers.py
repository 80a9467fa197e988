"""Answer that the client gets for a turn: text, thoughts and calls, with ids that the client sends back."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.chat.base import ParsedTurn
from agentrl.engines.base import Completion, FinishReason
from agentrl.gateway.base import AnswerCall, Finish, TurnAnswer


def answer_of(
    parsed: ParsedTurn, completion: Completion, identity: str, num_prompt_tokens: int, stop: Sequence[str]
) -> TurnAnswer:
    """Return the answer for a turn.

    Args:
        identity: letters and digits, unique to the turn.
        stop: the stop strings of the request. Clients expect an answer without the stop string that ended the turn.
    """
    calls = tuple(
        AnswerCall(f"call_{identity}{at:02d}", call.name, call.arguments, call.error or "")
        for at, call in enumerate(parsed.calls)
    )
    return TurnAnswer(
        f"turn_{identity}",
        _until_stop(parsed.content, completion.matched_stop, stop),
        parsed.thinking,
        calls,
        _finish(completion, bool(calls)),
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=completion.num_cached_tokens,
        num_tokens=len(completion.token_ids),
    )


def _until_stop(content: str, matched: str | None, stop: Sequence[str]) -> str:
    return content.rpartition(matched)[0] if matched in stop and matched and matched in content else content


def _finish(completion: Completion, has_calls: bool) -> Finish:
    if completion.finish_reason is FinishReason.LENGTH:
        return Finish.LENGTH
    return Finish.CALLS if has_calls else Finish.STOP
