"""Measure verl's ToolAgentLoop on the conversation of `conversation.py`: `python verl_loop.py FOLDER_OF_THE_TOKENIZER`.

One loop object is created per rollout with `hydra.utils.instantiate`, as in verl's worker. All loop objects run in one
event loop. The worker itself (Ray, padding into tensors, the reward) and the connection to a server are not measured.
An object in the same process replaces the server, and returns token ids and log-probabilities immediately.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version

import hydra
from conversation import ANSWER, CALL, RESULT, Stopwatch, question, search, serve
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap, ToolListWrap
from verl.tools.function_tool import function_tool, get_function_tool
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

TOKENIZER = AutoTokenizer.from_pretrained(sys.argv[1])
function_tool(search)
TOOLS = ToolListWrap([get_function_tool("search")])
LOOP = OmegaConf.create({"_target_": "verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop"})
MULTI_TURN = {
    "max_user_turns": None,
    "max_assistant_turns": None,
    "max_parallel_calls": 1,
    "max_tool_response_length": 256,
    "tool_response_truncate_side": "middle",
    "format": "hermes",
}


class Server:
    """Server that replies immediately: a call in every turn of a conversation except the last."""

    def __init__(self, num_turns: int) -> None:
        end = [TOKENIZER.convert_tokens_to_ids("<|im_end|>")]
        self._call, self._answer = (TOKENIZER.encode(text, add_special_tokens=False) + end for text in (CALL, ANSWER))
        self._num_turns = num_turns
        self._taken: dict[str, int] = {}

    async def generate(self, request_id: str, **_: object) -> TokenOutput:
        self._taken[request_id] = taken = self._taken.get(request_id, 0) + 1
        token_ids = self._call if taken < self._num_turns else self._answer
        return TokenOutput(token_ids=list(token_ids), log_probs=[0.0] * len(token_ids), num_preempted=0)


def config_of(num_turns: int) -> DictConfigWrap:
    rollout = {
        "multi_turn": MULTI_TURN,
        "prompt_length": 4096,
        "response_length": 1000 * num_turns,
        "full_determinism": False,
    }
    return DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}}))


async def rollouts(num_rollouts: int, num_turns: int) -> Stopwatch:
    server, config, data = Server(num_turns), config_of(num_turns), DictConfigWrap(OmegaConf.create({}))

    async def rollout(number: int) -> AgentLoopOutput:
        loop = hydra.utils.instantiate(
            config=LOOP,
            trainer_config=config,
            server_manager=server,
            tokenizer=TOKENIZER,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=data,
            hf_model_type="qwen2",
            tools=TOOLS,
        )
        return await loop.run({}, raw_prompt=question(number))

    with Stopwatch(num_rollouts * num_turns) as spent:
        outputs = await asyncio.gather(*map(rollout, range(num_rollouts)))
    for output in outputs:
        assert TOKENIZER.decode(output.response_ids).count(RESULT) == num_turns - 1
    return spent


def measure(num_rollouts: int, num_turns: int) -> Stopwatch:
    return asyncio.run(rollouts(num_rollouts, num_turns))


if __name__ == "__main__":
    serve(measure, {name: version(name) for name in ("verl", "transformers", "torch")})
