"""Adapter that runs a verl agent loop as an agentrl loop: prepares the inputs and converts the output to segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from agentrl.agent_loops.base import AgentLoop, Generate, Recording
from agentrl.chat.base import ToolParser
from agentrl.compat.verl.server import ServerManager, as_dictionary
from agentrl.compat.verl.types import AgentLoopOutput
from agentrl.config.run import RunConfig
from agentrl.engines.base import FinishReason, SamplingParams
from agentrl.types.messages import Message
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory
from agentrl.utils.signatures import keyword_filter

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession


class VerlAgentLoop(AgentLoop):
    """Agent loop that runs a class with verl's `run(sampling_params, **kwargs)`; one new instance per rollout."""

    roles = ()  # verl loops render their own messages
    strips_thinking = False

    def __init__(
        self,
        chat: ChatFormat,
        parser: ToolParser,
        config: RunConfig,
        loop_class: type,
        options: Mapping[str, JsonValue],
    ) -> None:
        super().__init__(chat, parser, config)
        self._loop_class = loop_class
        self._options = options

    async def run(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
    ) -> Rollout:
        """Run the loop and convert its output.

        Raises:
            TypeError: the output is not an AgentLoopOutput or a list of them.
            ValueError: the output marks tokens as sampled that the engine did not sample, its `response_mask` is wrong,
                or it has fields that are not supported.
        """
        server = ServerManager(generate, sampling)
        output = await self._build(server).run(as_dictionary(sampling), **row_fields(task))
        outputs = output if isinstance(output, list) else [output]
        for one in outputs:
            if not isinstance(one, AgentLoopOutput):
                raise TypeError(f"run must return an AgentLoopOutput or a list of them, not {type(one).__name__}")
        trajectories = [self._trajectory(one, server.recording, task.messages) for one in outputs]
        return Rollout(trajectories, self._stop(trajectories, server.recording), rewards=_rewards(outputs))

    def _build(self, server: ServerManager) -> Any:  # the user's class
        view = verl_config(self.config.model_dump_json())
        given = {
            "trainer_config": SimpleNamespace(config=view),
            "server_manager": server,
            "tokenizer": self.chat.tokenizer,
            "processor": None,
            "dataset_cls": None,
            "data_config": SimpleNamespace(config=view.data),
        }
        # older loops accept fewer arguments: pass only those that the class accepts
        return self._loop_class(**keyword_filter(self._loop_class)(given), **self._options)

    def _trajectory(self, output: AgentLoopOutput, recording: Recording, prompt: Sequence[Message]) -> Trajectory:
        trajectory = Trajectory([Segment(Author.PROMPT, output.prompt_ids)], prompt)
        for segment in _response(output, recording):
            trajectory.append(segment)
            role = "assistant" if segment.author is Author.MODEL else "tool"
            trajectory.messages.append(Message(role=role, content=self.chat.text(segment.token_ids)))
        return trajectory

    def _stop(self, trajectories: Sequence[Trajectory], recording: Recording) -> Stop:
        reason = recording.last.finish_reason if recording.last else FinishReason.STOP
        if reason is FinishReason.ABORT:
            return Stop.ABORTED
        limit = self.config.data.max_response_length
        full = any(trajectory.num_response_tokens >= limit for trajectory in trajectories)
        return Stop.MAX_RESPONSE_TOKENS if full or reason is FinishReason.LENGTH else Stop.FINISHED


def _response(output: AgentLoopOutput, recording: Recording) -> list[Segment]:
    """Convert the response to segments."""
    if output.multi_modal_data or output.routed_experts is not None:
        raise ValueError("AgentLoopOutput: multi_modal_data and routed_experts are not supported")
    # with an empty mask, verl loops return the whole prompt as `response_ids`: they compute prompt_ids[-len(mask):]
    if not output.response_mask:
        return []
    if len(output.response_mask) != len(output.response_ids) or not set(output.response_mask) <= {0, 1}:
        raise ValueError(
            f"AgentLoopOutput: response_mask must hold a 0 or 1 for each of {len(output.response_ids)} response_ids, "
            f"not {len(output.response_mask)} values of {sorted(set(output.response_mask))}"
        )
    token_ids = output.prompt_ids + output.response_ids
    segments: list[Segment] = []
    start = len(output.prompt_ids)
    for sampled, run in groupby(output.response_mask):
        stop = start + sum(1 for _ in run)
        others = Segment(Author.TOOL, token_ids[start:stop])
        segments += recording.claim(token_ids, start, stop) if sampled else [others]
        start = stop
    return segments


def _rewards(outputs: Sequence[AgentLoopOutput]) -> dict[str, float]:
    """Return the last `reward_score`, and the numbers in `reward_extra_info` of the output that has this score.

    Return an empty dictionary if no output has a `reward_score`: the reward function then computes the score.
    """
    scored = [output for output in outputs if output.reward_score is not None]
    if not scored or scored[-1].reward_score is None:
        return {}
    beside = scored[-1].extra_fields.get("reward_extra_info", {})
    numbers = {name: float(value) for name, value in beside.items() if isinstance(value, int | float)}
    return {**numbers, "score": scored[-1].reward_score}


def row_fields(task: Task) -> dict[str, object]:
    """Return the columns of the task's row under verl's names, as keyword arguments for `run`."""
    kwargs: dict[str, object] = {"tools_kwargs": task.tools_kwargs, "interaction_kwargs": task.interaction_kwargs}
    return {
        **task.extra_info,  # further columns
        "raw_prompt": [dict(message) for message in task.messages],
        "data_source": task.data_source,
        "reward_model": {"style": "rule", "ground_truth": task.ground_truth},
        "extra_info": {"index": task.index, **kwargs, **task.extra_info},
        "index": task.index,
        "uid": task.uid,
        "agent_name": task.agent_name,
        **kwargs,
    }


@lru_cache(maxsize=4)
def verl_config(config_json: str) -> Any:  # a DictConfig, which is untyped
    """Return the run's configuration under verl's names, for verl loops."""
    from omegaconf import OmegaConf  # slow import (50 ms) that only verl loops need

    config = RunConfig.model_validate_json(config_json)
    whole: dict[str, Any] = config.model_dump(mode="json")
    parts = {name: whole.pop(name) for name in ("model", "actor", "ref", "rollout")}
    parts["rollout"] |= {
        "name": config.rollout.engine,
        "prompt_length": config.data.max_prompt_length,
        "response_length": config.data.max_response_length,
        "calculate_log_probs": True,
    }
    return OmegaConf.create({**whole, "actor_rollout_ref": parts})
