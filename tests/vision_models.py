"""A tiny vision-language model on disk, in transformers' format: random weights, and its own processor."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Literal, get_args

import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

Family = Literal["qwen2_5_vl", "qwen3_vl"]
FAMILIES: tuple[Family, ...] = get_args(Family)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
PADS = ("<|image_pad|>", "<|video_pad|>")
TEMPLATE = """
{%- macro put(content) -%}
{%- if content is string %}{{ content }}{% else %}
{%- for part in content -%}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ put(message.content) }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif -%}
{%- else -%}
<|im_start|>{{ message.role }}
{{ put(message.content) }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""

_TEXT = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "eos_token_id": 258,
    "bos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
}
_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
}
_FAMILIES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "qwen2_5_vl": ("Qwen2_5_VL", {}, {"out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}),
    "qwen3_vl": (
        "Qwen3VL",
        {"head_dim": 8},
        {"out_hidden_size": 32, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
    ),
}


def picture(color: str = "red", size: tuple[int, int] = (30, 20), kind: str = "PNG") -> bytes:
    """An image file: a square on a coloured background."""
    image = Image.new("RGB", size, color)
    image.paste("white", (2, 2, size[0] // 2, size[1] // 2))
    buffer = BytesIO()
    image.save(buffer, format=kind)
    return buffer.getvalue()


def vision_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and the control tokens of the family."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in (*SPECIAL, *PADS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


def save_vision_model(folder: Path, family: Family = "qwen2_5_vl", seed: int = 0) -> Path:
    """Weights, tokenizer and processor, in transformers' own files."""
    name, text, vision = _FAMILIES[family]
    tokenizer = vision_tokenizer()
    ids = {
        f"{key}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for key, token in (
            *(("image", "image_pad"), ("video", "video_pad")),
            *(("vision_start", "vision_start"), ("vision_end", "vision_end")),
        )
    }
    config = getattr(transformers, f"{name}Config")(
        text_config={**_TEXT, **text}, vision_config={**_VISION, **vision}, **ids, eos_token_id=258
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    model.generation_config.eos_token_id = 258
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    images = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": f"{name}Processor",
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 256, "longest_edge": 4096},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(images), encoding="utf-8")
    return folder
