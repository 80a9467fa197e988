"""Registry of tool parsers."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.chat.base import ToolParser
from agentrl.registry import Registry

AUTO = "auto"
"""Name for the format that fits the chat template (`agentrl.chat.parsers.choice`)."""
TOKENIZER = "tokenizer"
"""Name of the parser that reads turns as the model's tokenizer describes them."""

# An entry is called without arguments: `tool_parsers.get("hermes")()`.
tool_parsers: Registry[Callable[[], ToolParser]] = Registry(
    "tool parser",
    builtin={
        "deepseek_v3": "agentrl.chat.parsers.marked.deepseek:DeepSeekV3Parser",
        "deepseek_v3.1": "agentrl.chat.parsers.marked.deepseek:DeepSeekV31Parser",
        "deepseek_v3.2": "agentrl.chat.parsers.marked.deepseek_dsml:DeepSeekV32Parser",
        "gemma4": "agentrl.chat.parsers.marked.gemma4:Gemma4Parser",
        "glm": "agentrl.chat.parsers.marked.glm:GlmParser",
        "gpt_oss": "agentrl.chat.parsers.marked.gpt_oss:GptOssParser",
        "granite": "agentrl.chat.parsers.marked.json_lists:GraniteParser",
        "hermes": "agentrl.chat.parsers.hermes:HermesParser",
        "kimi_k2": "agentrl.chat.parsers.marked.kimi_k2:KimiK2Parser",
        "llama3_json": "agentrl.chat.parsers.llama3_json:Llama3JSONParser",
        "mistral": "agentrl.chat.parsers.mistral:MistralParser",
        "muse_glimmer": "agentrl.chat.parsers.marked.muse_glimmer:MuseGlimmerParser",
        "phi4": "agentrl.chat.parsers.marked.json_lists:Phi4Parser",
        "pythonic": "agentrl.chat.parsers.pythonic:PythonicParser",
        "qwen3_coder": "agentrl.chat.parsers.qwen3_coder:Qwen3CoderParser",
        "react": "agentrl.chat.parsers.react:ReactParser",
        "tokenizer": "agentrl.chat.parsers.foreign.tokenizer:TokenizerParser",
    },
    families={"sglang/": "agentrl.chat.parsers.sglang:find_sglang_parser"},
)
