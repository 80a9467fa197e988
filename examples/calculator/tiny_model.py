"""A tokenizer, and a tiny model with random weights.

Dense models have about 460,000 weights, mixtures of experts 650,000 to 760,000. All models are small enough to train
on one CPU core.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
BEGIN, PAD = "<|begin_of_text|>", "<|endoftext|>"
SPECIAL_TOKENS = {"bos_token": BEGIN, "eos_token": PAD}
"""Variables of chat templates. A template without an end-of-turn token of its own ends turns with `eos_token`."""
VOCAB_SIZE = 520
COMMENT = re.compile(r"{#.*?#}", re.DOTALL)
CONTROL = re.compile(r"<[|｜][^|｜<>\s]+[|｜]>")
TAG = re.compile(r"</?(?:think|tool_calls?|tool_response)>")
SYMBOLS = r"\d|[-+*()]|\n"
"""Regular expression of texts that are separate tokens."""
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
GROUPED = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2}


def deepseek(*, num_key_value_heads: int, head_dim: int, num_attention_heads: int, **sizes: object) -> DeepseekV3Config:
    """Configuration of a model with latent attention, as many key heads as query heads, and a dense first layer."""
    return DeepseekV3Config(
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_attention_heads,
        first_k_dense_replace=1,
        moe_intermediate_size=96,
        **sizes,
        **LATENT,
        **GROUPED,
    )


FAMILIES = {
    "qwen3": Qwen3Config,
    "llama": LlamaConfig,
    # each token uses as many weights as in the dense models
    "qwen3_moe": partial(
        Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=192, norm_topk_prob=True
    ),
    "deepseek_v3": deepseek,
}


def make_tokenizer(
    texts: Sequence[str], *, template: str = CHAT_TEMPLATE, vocab_size: int = VOCAB_SIZE, isolated: str = SYMBOLS
) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on rendered conversations; the control tokens in the template's text are added tokens.

    Digits and operators are single tokens, so the model copies numbers symbol by symbol. All other text may merge
    across word boundaries. So the fixed text of a conversation becomes few tokens, and prompts have only a third of
    the tokens that they would have otherwise.
    """
    special, tags = added_tokens(template)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(isolated), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(tags),
        min_frequency=2,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    never_merged = re.compile("|".join(map(re.escape, special + tags)))
    bpe.train_from_iterator((piece for text in texts for piece in never_merged.split(text) if piece), trainer)
    last = max(special, key=texts[0].rfind)  # the end-of-turn token, because each text ends with a model turn
    names = {"bos_token": BEGIN} if BEGIN in special else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=last, pad_token=PAD, **names)
    # tags are not special tokens, because the parser must see them in the decoded text
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    tokenizer.chat_template = template
    return tokenizer


def added_tokens(template: str) -> tuple[list[str], list[str]]:
    """Return the special tokens and the tags in the text of a chat template."""
    text = COMMENT.sub("", template)
    begin = [BEGIN] if "bos_token" in text else []
    return list(dict.fromkeys([PAD, *begin, *CONTROL.findall(text)])), list(dict.fromkeys(TAG.findall(text)))


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int, family: str = "qwen3") -> PreTrainedModel:
    """Make a model with random weights, which depend only on the seed and the family."""
    torch.manual_seed(seed)
    config = FAMILIES[family](
        vocab_size=max(VOCAB_SIZE, len(tokenizer)),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        # RoPE wavelengths: 6 to 470 tokens; contexts: 250 tokens. Copying is learned twice as fast as with theta 10,000
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.05,  # with the usual 0.02, a model of this width learns slowly
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return AutoModelForCausalLM.from_config(config)
