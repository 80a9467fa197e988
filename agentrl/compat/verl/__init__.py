"""Agent loops written for verl: change only the import line.

    from agentrl.compat.verl import AgentLoopBase, AgentLoopOutput, register

A verl loop returns flat lists of tokens, and a mask that marks the sampled tokens. The marked tokens are matched with
the engine's completions, which provide the log-probabilities and policy versions. Marked tokens that the engine did not
sample are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.agent_loops.base import register
from agentrl.compat.verl.adapter import VerlAgentLoop
from agentrl.compat.verl.types import AgentLoopMetrics, AgentLoopOutput, TokenOutput

if TYPE_CHECKING:
    from agentrl.chat.base import ToolParser
    from agentrl.chat.format import ChatFormat
    from agentrl.compat.verl.server import ServerManager
    from agentrl.config.run import RunConfig

__all__ = [
    "AgentLoopBase",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "TokenOutput",
    "register",
    "rollout_trace_op",
    "simple_timer",
]

F = TypeVar("F", bound=Callable[..., object])

# Any in this module: verl's interface is untyped.


class AgentLoopBase:
    """verl's base class of agent loops. Subclass it and implement `run`.

    Attributes:
        config, rollout_config, data_config: agentrl's configuration, under verl's names.
        server_manager: `await server_manager.generate(request_id=, prompt_ids=, sampling_params=)` samples tokens.
        tokenizer: the model's tokenizer.
        processor: always None, because images are not supported.
        dataset_cls: always None.
        loop: the running event loop.
    """

    def __init__(
        self,
        trainer_config: Any,
        server_manager: ServerManager,
        tokenizer: Any,
        processor: Any = None,
        dataset_cls: Any = None,
        data_config: Any = None,
        **kwargs: Any,
    ) -> None:
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.data_config = data_config.config if data_config is not None else self.config.data
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.dataset_cls = dataset_cls
        self.apply_chat_template_kwargs: dict[str, Any] = dict(self.data_config.get("apply_chat_template_kwargs") or {})
        self.mm_processor_kwargs: dict[str, Any] = {}
        self.loop = asyncio.get_running_loop()
        self.init_class(config=self.config, tokenizer=tokenizer, processor=processor, **kwargs)

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, processor: Any = None, **kwargs: Any) -> None:
        """Do nothing. Older verl loops override this method to set up the class."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Run one rollout for a row of the data; `kwargs` are its columns (`raw_prompt`, `tools_kwargs`, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define run")

    async def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        images: object = None,
        videos: object = None,
        audios: object = None,
        mm_processor_kwargs: object = None,
        remove_system_prompt: bool = False,
    ) -> list[int]:
        """Return token ids of `messages` with the generation prompt.

        `remove_system_prompt` drops the template's default system prompt.
        """
        if images or videos or audios:
            raise ValueError("apply_chat_template: images, videos and audios are not supported")
        token_ids = self._rendered(messages, tools, add_generation_prompt=True)
        return token_ids[len(self._system_prompt()) :] if remove_system_prompt else token_ids

    async def process_vision_info(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return an empty dict: images are not supported."""
        return {}

    @classmethod
    def as_agent_loop(cls, chat: ChatFormat, parser: ToolParser, config: RunConfig, **options: Any) -> VerlAgentLoop:
        """Build the adapter that runs this loop in agentrl. The registry of agent loops calls this method."""
        return VerlAgentLoop(chat, parser, config, cls, options)

    def _rendered(self, messages: Sequence[Any], tools: Any = None, add_generation_prompt: bool = False) -> list[int]:
        token_ids: list[int] = self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=False,
            **self.apply_chat_template_kwargs,
        )
        return token_ids

    def _system_prompt(self) -> list[int]:
        """Return the token ids of the template's default system prompt, which precedes the first rendered message."""
        empty = {"role": "user", "content": ""}
        once, twice = self._rendered([empty]), self._rendered([empty, empty])
        return once[: 2 * len(once) - len(twice)]


@contextmanager
def simple_timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
    """Add the seconds that the `with` block takes to `timing_raw[name]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        timing_raw[name] = timing_raw.get(name, 0.0) + time.perf_counter() - start


def rollout_trace_op(function: F) -> F:
    """Return the function unchanged. verl's tracing decorator is not needed, because agentrl saves every rollout."""
    return function
