"""Turns a conversation into the tokens that a reward model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from agentrl.chat.format import ChatFormat
from agentrl.chat.template import Template
from agentrl.errors import RewardError
from agentrl.tools.base import InfraError
from agentrl.types.messages import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatReader:
    """Renders messages with the chat template of the reward model's own tokenizer, without tool schemas.

    Raises:
        TemplateError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer, self._template = tokenizer, Template(tokenizer, {})

    def __call__(self, messages: Sequence[Message], token_ids: Sequence[int] | None) -> list[int]:
        """Return the [T] token ids of the messages; the policy's `token_ids` are ignored.

        Raises:
            TemplateError: the template rejects the messages.
        """
        text = self._template.render(messages, (), prompt=False)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)  # the template adds the special tokens
        return ids


class TurnReader:
    """Renders messages as in a rollout: turn by turn, up to the end of the last turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._chat = ChatFormat(tokenizer)

    def __call__(self, messages: Sequence[Message], token_ids: Sequence[int] | None) -> list[int]:
        """Return the [T] token ids of the messages; the policy's `token_ids` are ignored.

        Raises:
            TemplateError: the template rejects the messages.
            DataError: there are no messages.
        """
        return list(self._chat.dialogue(messages, ()).token_ids)


class TokenReader:
    """Returns the policy's own tokens."""

    def __call__(self, messages: Sequence[Message], token_ids: Sequence[int] | None) -> list[int]:
        """Return the policy's [T] token ids unchanged.

        Raises:
            RewardError: the tokens are unknown, for example because the answer was given as text.
        """
        if not token_ids:
            raise RewardError("reward.reward_model.input=tokens needs rollouts, but these are texts: set input=chat")
        return list(token_ids)


Reader = ChatReader | TurnReader | TokenReader


def fitting(token_ids: list[int], max_length: int, too_long: Literal["error", "leave_out"]) -> list[int]:
    """Return `token_ids` if the model can read all of them; nothing is ever truncated.

    Raises:
        RewardError: there are no tokens, or there are too many tokens and `too_long` is `error`.
        InfraError: there are too many tokens, and `too_long` is `leave_out`.
    """
    if not token_ids:
        raise RewardError("the conversation has no tokens")
    if len(token_ids) <= max_length:
        return token_ids
    what = f"the conversation has {len(token_ids)} tokens, but the reward model reads at most {max_length}"
    if too_long == "leave_out":
        raise InfraError(what)
    raise RewardError(f"{what}: raise reward.reward_model.max_length, or set reward.reward_model.too_long=leave_out")


def conversation(solution_str: str, extra_info: Mapping[str, object]) -> tuple[list[Message], Sequence[int] | None]:
    """Return (messages, token ids) of the complete last trajectory of a rollout.

    If the answer is only known as text, return the messages of prompt and answer, and None for the token ids.
    """
    if messages := extra_info.get("conversation"):
        return cast("list[Message]", messages), cast("Sequence[int] | None", extra_info.get("token_ids"))
    prompt = cast("list[Message]", extra_info.get("prompt", []))
    return [*prompt, Message(role="assistant", content=solution_str)], None
