"""Test helpers: an engine with scripted replies, a chat format, tools, and a rollout runner that combines them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from chat_families import family_tokenizer

from agentrl.chat.format import ChatFormat
from agentrl.config.run import RunConfig
from agentrl.engines.base import Completion, FinishReason, GenerateRequest, SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Rollout
from agentrl.types.task import Task

CHAT = ChatFormat(family_tokenizer("chatml"))
TOKENIZER = CHAT.tokenizer
END = CHAT.stop_token_ids[0]
TASK = Task([{"role": "user", "content": "What is 2 + 3?"}], ground_truth="5", data_source="sums", uid="t0")


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


class ListEngine(ScriptedEngine):
    """Its n-th completion is `replies[n]`, with log-probabilities -0.5, -1.5, ...; it stores the requests.

    A reply of None hangs until the deadline, then returns two tokens, as a sampling engine would.
    """

    def __init__(self, *replies: str | None, tokenizer=TOKENIZER) -> None:
        super().__init__([reply or "ab" for reply in replies], tokenizer=tokenizer)
        self.replies = replies
        self.version = 7
        self.requests: list[GenerateRequest] = []
        self.released: list[str] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        position = len(self.requests)
        self.requests.append(replace(request, token_ids=list(request.token_ids)))
        hangs = position < len(self.replies) and self.replies[position] is None
        if hangs:
            await asyncio.sleep(1e9 if request.deadline_s is None else request.deadline_s)
            request = replace(request, sampling=replace(request.sampling, max_new_tokens=2))
        completion = await super().generate(request)
        logprobs = [-0.5 - position for position in range(len(completion.token_ids))]
        reason = FinishReason.ABORT if hangs else completion.finish_reason
        return replace(completion, logprobs=logprobs, finish_reason=reason)

    async def release(self, session: str) -> None:
        self.released.append(session)


def config(loop: str = "tool_agent", *, max_response_length: int = 500, agent: dict | None = None, **multi_turn):
    return RunConfig.model_validate(
        {
            "model": {"path": "none"},
            "data": {"max_response_length": max_response_length},
            "rollout": {"agent": {"default_agent_loop": loop, **(agent or {})}, "multi_turn": multi_turn},
        }
    )


async def exact(data_source, solution_str, ground_truth, extra_info):
    return {"score": float(extra_info["last_turn"].strip() == ground_truth)}


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return str(a + b)


def call(tool: str, **arguments) -> str:
    written = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def runner(engine, run_config: RunConfig, tools: Sequence[Callable] = (add,), **options) -> RolloutRunner:
    toolbox = Toolbox(tools, run_config.rollout.multi_turn)
    return RolloutRunner(
        engine, options.pop("chat", CHAT), toolbox, options.pop("reward", exact), run_config, **options
    )


def roll(engine, run_config: RunConfig, task: Task = TASK, **options) -> Rollout:
    seed = options.pop("seed", 0)
    sampling = options.pop("sampling", SamplingParams())
    return asyncio.run(runner(engine, run_config, **options).run(task, sampling, seed=seed))


def texts(rollout: Rollout) -> list[tuple[str, str]]:
    """(author, text) of every segment of the first trajectory."""
    return [(each.author.value, TOKENIZER.decode(each.token_ids)) for each in rollout.trajectories[0].segments]
