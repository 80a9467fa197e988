"""Chat templates modelled on well-known ones, and small byte-level tokenizers for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pytest
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.chat.format import ChatFormat
from agentrl.types.messages import FunctionSchema, Message, ToolSchema

SPECIAL = {
    "chatml": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "headers": ["<|begin|>", "<|start_header|>", "<|end_header|>", "<|eot|>"],
    "inst": ["<s>", "</s>", "[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]", "[CALLS]", "[RESULTS]", "[/RESULTS]"],
}
# As in Qwen: single tokens of the tokenizer, but not marked as special
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

_CHATML_SYSTEM = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n\\nCall them with <tool_call></tool_call>:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}"""
_HERMES_CALLS = """
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}"""
_MERGED_RESULTS = """
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}"""
_CHATML_PROMPT = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"

# Like Qwen2.5: prefix-preserving, consecutive tool messages share one user turn
CHATML = f"""{_CHATML_SYSTEM}
{{%- for message in messages %}}
    {{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}}
        {{{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}}}
    {{%- elif message.role == 'assistant' %}}
        {{{{- '<|im_start|>assistant\\n' }}}}
        {{%- generation %}}{{{{- message.content }}}}{_HERMES_CALLS}
        {{{{- '<|im_end|>' }}}}{{%- endgeneration %}}{{{{- '\\n' }}}}{_MERGED_RESULTS}
    {{%- endif %}}
{{%- endfor %}}{_CHATML_PROMPT}"""

# Like Qwen3: thoughts before the last question are removed, and the last turn always has a thinking block
THINKING = f"""{_CHATML_SYSTEM}
{{%- set ns = namespace(question=messages|length - 1, open=true) %}}
{{%- for message in messages[::-1] %}}
    {{%- if ns.open and message.role == 'user' %}}
        {{%- set ns.open = false %}}{{%- set ns.question = messages|length - loop.index %}}
    {{%- endif %}}
{{%- endfor %}}
{{%- for message in messages %}}
    {{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}}
        {{{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}}}
    {{%- elif message.role == 'assistant' %}}
        {{%- set content = message.content %}}
        {{%- set thoughts = '' %}}
        {{%- if '</think>' in content %}}
            {{%- set thoughts = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}}
            {{%- set content = content.split('</think>')[-1].lstrip('\\n') %}}
        {{%- endif %}}
        {{{{- '<|im_start|>assistant\\n' }}}}
        {{%- if loop.index0 > ns.question and (loop.last or thoughts) %}}
            {{{{- '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}}}
        {{%- endif %}}
        {{{{- content }}}}{_HERMES_CALLS}
        {{{{- '<|im_end|>\\n' }}}}{_MERGED_RESULTS}
    {{%- endif %}}
{{%- endfor %}}{_CHATML_PROMPT}
{{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking %}}
    {{{{- '<think>\\n\\n</think>\\n\\n' }}}}
{{%- endif %}}"""

# Like Llama 3.1: header ids, trimmed contents, tools in the first user message, tool text as JSON
HEADERS = """
{{- '<|begin|>' }}
{%- macro header(role) %}{{- '<|start_header|>' + role + '<|end_header|>\\n\\n' }}{% endmacro %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}{%- set messages = messages[1:] %}
    {{- header('system') + system + '<|eot|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- header('ipython') }}{{- message.content | tojson }}{{- '<|eot|>' }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- header('assistant') + '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}<|eot|>' }}
    {%- else %}
        {{- header(message.role) }}
        {%- if loop.first and tools %}
            {{- 'Functions you may call:\\n\\n' }}
            {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{% endfor %}
        {%- endif %}
        {{- message.content | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- header('assistant') }}{% endif %}"""

# Like Mistral: no generation prompt; tools before the last user message; call ids are rendered and checked;
# an assistant message with calls loses its content; a system remark follows only the last assistant message
INST = """
{{- bos_token }}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.index0 == ns.last %}{{- '[TOOLS]' }}{{- tools | tojson }}{{- '[/TOOLS]' }}{% endif %}
        {{- '[INST] ' + message.content | trim + ' [/INST]' }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 %}
            {{- raise_exception('a tool call id has nine characters') }}
        {%- endif %}
        {{- '[RESULTS] {"content": ' }}{{- message.content | tojson }}
        {{- ', "call_id": "' + message.tool_call_id + '"}[/RESULTS]' }}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- '[CALLS] [' }}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson }}{{- ', ' if not loop.last }}
        {%- endfor %}
        {{- ']</s>' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + '</s>' }}{{- ' (over to you)' if loop.last }}
    {%- else %}{{- raise_exception('only user, tool and assistant roles') }}
    {%- endif %}
{%- endfor %}"""

FAMILIES = {
    "chatml": (CHATML, "chatml", "<|im_end|>"),
    "thinking": (THINKING, "chatml", "<|im_end|>"),
    "headers": (HEADERS, "headers", "<|eot|>"),
    "inst": (INST, "inst", "</s>"),
}
NAMES = sorted(FAMILIES)
_SAMPLES = [
    'user assistant system tool {"name": "search", "arguments": {"query": "weather in Paris"}} hello world',
    "The result is 42, and the answer is that it rains. What would you like to know? Functions you may call",
]


@lru_cache
def byte_level(alphabet: str) -> str:
    """A byte-level BPE tokenizer, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL[alphabet],
    )
    tokenizer.train_from_iterator(_SAMPLES * 5, trainer)
    if alphabet == "chatml":
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    return tokenizer.to_str()


def tokenizer_for(template: str, alphabet: str = "chatml") -> PreTrainedTokenizerFast:
    special = SPECIAL[alphabet]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_level(alphabet)), bos_token=special[0], eos_token=special[1]
    )
    tokenizer.chat_template = template
    return tokenizer


def family_tokenizer(name: str) -> PreTrainedTokenizerFast:
    template, alphabet, _ = FAMILIES[name]
    return tokenizer_for(template, alphabet)


def schemas(*names: str) -> list[ToolSchema]:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    return [
        ToolSchema(function=FunctionSchema(name=name, description=f"Does {name}.", parameters=parameters))
        for name in names or ("search", "calculator")
    ]


TOOLS = schemas()
TOKENIZERS = {name: family_tokenizer(name) for name in NAMES}
CHATS = {name: ChatFormat(tokenizer) for name, tokenizer in TOKENIZERS.items()}
families = pytest.mark.parametrize("name", NAMES)

# Text that may break templates and tokenizers, without the text of control tokens
words = st.sampled_from(
    ["hello", " the", "\n", "  ", "{", "}", '"', "\\", "'", "<", ">", "é", "日本", "🙂", "[1]", "{{ x }}"]
)
_CONTROL_TOKENS = {token for tokens in SPECIAL.values() for token in tokens}
any_text = st.text(st.characters(codec="utf-8"), max_size=20).filter(
    lambda text: not any(token in text for token in _CONTROL_TOKENS)
)
contents = st.one_of(st.lists(words, max_size=8).map("".join), any_text)


def tool(content: str, number: int = 0, name: str = "search") -> Message:
    return {"role": "tool", "name": name, "tool_call_id": f"c{number:08d}", "content": content}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


tool_batches = st.lists(contents, min_size=1, max_size=3).map(
    lambda texts: [tool(text, number) for number, text in enumerate(texts)]
)
answers = st.one_of(tool_batches, contents.map(lambda text: [user(text)]))


def end_text(name: str) -> str:
    return FAMILIES[name][2]


def rendered(name: str, messages: Sequence[Message], tools: object = TOOLS) -> str:
    """The independent reference: transformers' rendering of the complete conversation."""
    offered = [schema.for_template() for schema in tools] or None  # type: ignore[attr-defined]  # a list of schemas
    return TOKENIZERS[name].apply_chat_template(messages, tools=offered, tokenize=False, add_generation_prompt=True)


def full_ids(name: str, text: str) -> list[int]:
    return TOKENIZERS[name](text, add_special_tokens=False)["input_ids"]


# A template that does not simply insert a message's content
CONDITIONAL = CHATML.replace(
    "message.content + '\\n</tool_response>'",
    "('FAILED: ' if 'rror' in message.content else '') + message.content + '\\n</tool_response>'",
)
