"""Agent loops as verl users write them; only the import line differs."""

import json
import re
from typing import Any
from uuid import uuid4

from agentrl.compat.verl import AgentLoopBase, AgentLoopOutput, register, rollout_trace_op, simple_timer


@register("verl_single_turn")
class SingleTurnLoop(AgentLoopBase):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.prompt_length = self.config.actor_rollout_ref.rollout.prompt_length
        self.response_length = self.config.actor_rollout_ref.rollout.response_length

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        multi_modal_data = await self.process_vision_info(messages)
        images = multi_modal_data.get("images")
        metrics: dict[str, float] = {}
        request_id = uuid4().hex
        prompt_ids = await self.apply_chat_template(messages, images=images)
        with simple_timer("generate_sequences", metrics):
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, image_data=images
            )
        response_mask = [1] * len(output.token_ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=output.token_ids[: self.response_length],
            response_mask=response_mask[: self.response_length],
            response_logprobs=output.log_probs[: self.response_length] if output.log_probs else None,
            num_turns=2,
            metrics=metrics,
        )


class SumLoop(AgentLoopBase):
    """Two turns with tool text between them, written with the tokenizer alone."""

    def __init__(self, trainer_config, server_manager, tokenizer, processor, bonus=0.0, **kwargs):
        super().__init__(trainer_config, server_manager, tokenizer, processor, **kwargs)
        self.bonus = bonus

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        request_id = uuid4().hex
        prompt_ids = await self.loop.run_in_executor(
            None,
            lambda: self.tokenizer.apply_chat_template(
                list(kwargs["raw_prompt"]), add_generation_prompt=True, tokenize=True, return_dict=False
            ),
        )
        all_ids, response_mask = list(prompt_ids), []
        for _ in range(2):
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=all_ids, sampling_params=sampling_params
            )
            all_ids += output.token_ids
            response_mask += [1] * len(output.token_ids)
            called = re.search(r"<tool_call>(.*)</tool_call>", self.tokenizer.decode(output.token_ids), re.S)
            if called is None:
                break
            arguments = json.loads(called[1])["arguments"]
            message = {"role": "tool", "content": str(arguments["a"] + arguments["b"])}
            tool_ids = await self.apply_chat_template([message], remove_system_prompt=True)
            all_ids += tool_ids
            response_mask += [0] * len(tool_ids)
        answer = self.tokenizer.decode(output.token_ids[:-1])
        right = answer == kwargs["reward_model"]["ground_truth"]
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=all_ids[len(prompt_ids) :],
            response_mask=response_mask,
            reward_score=float(right) + self.bonus,
            num_turns=4,
            metrics={},
            extra_fields={"reward_extra_info": {"acc": right}, "turn_scores": []},
        )
