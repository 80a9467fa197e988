"""Measure TRL's tool loop with the conversation of `conversation.py`: `python trl_loop.py FOLDER_OF_THE_TOKENIZER`.

This measures `GRPOTrainer._generate`, which tokenizes the prompts, generates, parses, runs the tool loop and returns
ids, mask and log-probabilities. The rest of a step (rewards, loss) is not measured. Generation is replaced by an
instant reply. The tool is async; TRL runs async tools on a separate thread, one rollout after the other.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version

from conversation import ANSWER, CALL, RESULT, Stopwatch, question, search, serve
from datasets import Dataset
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

TOKENIZER = AutoTokenizer.from_pretrained(sys.argv[1], eos_token="<|im_end|>", pad_token="<|endoftext|>")
TOKENIZER.response_template = qwen3_template  # how TRL parses calls; the calls here have Qwen's format
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
CALL_IDS, ANSWER_IDS = ([*TOKENIZER.encode(text, add_special_tokens=False), END] for text in (CALL, ANSWER))


class StandInTrainer(GRPOTrainer):
    """GRPOTrainer with instant generation: a call in every turn of a conversation except the last."""

    turns_left = 0

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *_: object, **__: object
    ) -> tuple[list[list[int]], list[list[float]]]:
        self.turns_left -= 1  # all conversations are at the same turn
        reply = CALL_IDS if self.turns_left else ANSWER_IDS
        return [list(reply) for _ in prompt_ids], [[0.0] * len(reply) for _ in prompt_ids]


def trainer(folder: str) -> StandInTrainer:
    tiny = Qwen2Config(
        vocab_size=len(TOKENIZER),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=1_000_000,
    )
    options = GRPOConfig(
        folder, report_to="none", use_cpu=True, max_completion_length=1_000_000, max_tool_calling_iterations=1_000_000
    )
    return StandInTrainer(
        Qwen2ForCausalLM(tiny),
        lambda completions, **_: [0.0] * len(completions),
        args=options,
        train_dataset=Dataset.from_list([{"prompt": question(0)}]),
        processing_class=TOKENIZER,
        tools=[search],
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(folder)

        def measure(num_rollouts: int, num_turns: int) -> Stopwatch:
            made.turns_left = num_turns
            # TRL's `_generate_and_score_completions` sets both attributes for each batch
            made._sync_tool_dicts = [{}] * num_rollouts
            made._async_tool_dicts = [{"search": search}] * num_rollouts
            prompts = [question(number) for number in range(num_rollouts)]
            with Stopwatch(num_rollouts * num_turns) as spent:
                _, ids, *_ = made._generate(prompts)
            for completion_ids in ids:
                assert TOKENIZER.decode(completion_ids).count(RESULT) == num_turns - 1
            return spent

        serve(measure, {name: version(name) for name in ("trl", "transformers", "torch")})


if __name__ == "__main__":
    main()
