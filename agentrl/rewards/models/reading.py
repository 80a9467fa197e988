"""A conversation as the tokens that a reward model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from agentrl.chat.format import ChatFormat
from agentrl.chat.template import Template
from agentrl.errors import RewardError
from agentrl.messages import Message
from agentrl.tools.base import InfraError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatReader:
    """Messages in the chat template of the reward model's own tokenizer, tools' schemas left out.

    Raises:
        TemplateError: the tokenizer has none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer, self._template = tokenizer, Template(tokenizer, {})

    def __call__(self, messages: Sequence[Message], token_ids: Sequence[int] | None) -> list[int]:
        """[T] of the messages, whatever tokens the policy has for them.

        Raises:
            TemplateError: the template refuses them.
        """
        text = self._template.render(messages, (), prompt=False)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)  # the template writes them
        return ids


class TurnReader:
    """Messages as a rollout's tokens come about: rendered turn by turn, up to the end of the last one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._chat = ChatFormat(tokenizer)

    def __call__(self, messages: Sequence[Message], token_ids: Sequence[int] | None) -> list[int]:
        """[T] of the messages, whatever tokens the policy has for them.

        Raises:
            TemplateError: the template refuses them.
            DataError: there are none.
        """
        return list(self._chat.dialogue(messages, ()).token_ids)


class TokenReader:
    """The policy's own tokens."""

    def __call__(self, messages: Sequence[Message], token_ids: Sequence[int] | None) -> list[int]:
        """[T], as they are.

        Raises:
            RewardError: they are not known, as of answers that came as text.
        """
        if not token_ids:
            raise RewardError("reward.reward_model.input=tokens reads rollouts, and these are texts: use input=chat")
        return list(token_ids)


Reader = ChatReader | TurnReader | TokenReader


def fitting(token_ids: list[int], max_length: int, too_long: Literal["error", "leave_out"]) -> list[int]:
    """`token_ids`, if the model can read them all; nothing is ever cut.

    Raises:
        RewardError: it cannot, or there are none.
        InfraError: it cannot, under `leave_out`.
    """
    if not token_ids:
        raise RewardError("the conversation has no tokens")
    if len(token_ids) <= max_length:
        return token_ids
    what = f"the conversation has {len(token_ids)} tokens, and the reward model reads at most {max_length}"
    if too_long == "leave_out":
        raise InfraError(what)
    raise RewardError(f"{what}: raise reward.reward_model.max_length, or set reward.reward_model.too_long=leave_out")


def conversation(solution_str: str, extra_info: Mapping[str, object]) -> tuple[list[Message], Sequence[int] | None]:
    """(messages, tokens) of what a reward is shown: the whole last trajectory of a rollout, or a prompt and its answer.

    Tokens are None where the answer came as text.
    """
    if said := extra_info.get("conversation"):
        return cast("list[Message]", said), cast("Sequence[int]", extra_info["token_ids"])
    prompt = cast("list[Message]", extra_info.get("prompt", []))
    return [*prompt, Message(role="assistant", content=solution_str)], None
