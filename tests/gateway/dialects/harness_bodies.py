"""Second requests of harnesses, shortened: the form in which each sends its prompt, a call and a tool's result."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
ARGUMENTS = '{"command":  "ls"}'
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": "bash", "description": "Run a command", "parameters": PARAMETERS}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
CHAT_CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": ARGUMENTS}}
CHAT_RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}


def chat(*messages: Body, **keys: object) -> Body:
    return {"model": "policy", "messages": list(messages), "tools": [CHAT_TOOL], **keys}


MINI_SWE_AGENT = chat(
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": "Let me look.\n",
        "reasoning_content": "I should look.",
        "tool_calls": [CHAT_CALL],
        "function_call": None,
        "provider_specific_fields": {"refusal": None},
    },
    {**CHAT_RESULT, "content": [{"type": "text", "text": "a.txt", "cache_control": {"type": "ephemeral"}}]},
)
OPENAI_AGENTS = chat(
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "Let me look.\n", "tool_calls": [CHAT_CALL]},
    CHAT_RESULT,
    tools=[{"type": "function", "function": {**FUNCTION, "strict": True}}],
    stream=False,
    stream_options=None,
    store=None,
    tool_choice=None,
    parallel_tool_calls=None,
)
LANGCHAIN = chat(
    {"content": "You fix bugs.", "role": "system"},
    {"content": "Fix it.", "role": "user"},
    {
        "content": "Let me look.\n",
        "role": "assistant",
        "tool_calls": [{**CHAT_CALL, "function": {"name": "bash", "arguments": '{"command": "ls"}'}}],
    },
    CHAT_RESULT,
    stream=False,
)
PYDANTIC_AI = chat(
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": "Let me look.\n",
        "reasoning_content": "I should look.",
        "tool_calls": [{**CHAT_CALL, "function": {"name": "bash", "arguments": '{"command":"ls"}'}}],
    },
    CHAT_RESULT,
    stream=True,
    stream_options={"include_usage": True},
    tool_choice="auto",
)
SMOLAGENTS = chat(
    {"role": "system", "content": [{"type": "text", "text": "You fix bugs."}]},
    {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Calling tools:\n[{'id': 'call_1'}]"}]},
    {"role": "user", "content": [{"type": "text", "text": "Observation:\na.txt"}]},
    stop=["Observation:", "Calling tools:"],
    tool_choice="required",
)
PI = chat(
    {"role": "developer", "content": "You fix bugs."},
    {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I should look.",
        "tool_calls": [{**CHAT_CALL, "function": {"name": "bash", "arguments": '{"command":"ls"}'}}],
    },
    CHAT_RESULT,
    stream=True,
    stream_options={"include_usage": True},
    store=False,
    max_completion_tokens=4096,
    reasoning_effort="medium",
)
QWEN_CODE = chat(
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "This is the context."},
    {"role": "assistant", "content": "Got it. Thanks for the context!"},
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I should look.",
        "tool_calls": [{**CHAT_CALL, "function": {"name": "bash", "arguments": '{"command":"ls"}'}}],
    },
    CHAT_RESULT,
    max_tokens=8000,
    stream=True,
    stream_options={"include_usage": True},
)
CLINE = chat(
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": [{"type": "text", "text": "Fix it."}, {"type": "text", "text": "<environment/>"}]},
    {"role": "assistant", "content": "Let me look.\n", "tool_calls": [{**CHAT_CALL, "index": 0}]},
    CHAT_RESULT,
    stream=True,
    stream_options={"include_usage": True},
)

RESPONSES_CALL = {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": ARGUMENTS}
RESPONSES_RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}
CODEX: Body = {
    "model": "policy",
    "instructions": "You fix bugs.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Permissions."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "I should look."}],
            "content": None,
            "encrypted_content": "turn_1",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me look.\n"}],
        },
        {**RESPONSES_CALL, "id": "fc_call_1"},
        {
            "type": "custom_tool_call",
            "call_id": "call_2",
            "name": "apply_patch",
            "input": "*** Begin",
            "status": "completed",
        },
        RESPONSES_RESULT,
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done"},
    ],
    "tools": [
        {"type": "function", "strict": False, **FUNCTION},
        {"type": "custom", "name": "apply_patch", "description": "Edit", "format": {"type": "grammar"}},
        {"type": "namespace", "name": "agents", "description": "", "tools": []},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "client_metadata": {"session": "0199"},
}
OPENCODE: Body = {
    "model": "policy",
    "input": [
        {"role": "system", "content": "You fix bugs."},
        {"role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {"type": "reasoning", "id": "rs_turn_1", "summary": [], "encrypted_content": "turn_1"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me look.\n"}], "id": "msg_turn_1"},
        RESPONSES_CALL,
        RESPONSES_RESULT,
    ],
    "max_output_tokens": 32000,
    "store": False,
    "stream": True,
    "tools": [{"type": "function", **FUNCTION}],
}
MINI_SWE_AGENT_RESPONSES: Body = {
    "model": "policy",
    "input": [
        {"role": "system", "content": "You fix bugs."},
        {"role": "user", "content": "Fix it."},
        {
            "id": "msg_turn_1",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me look.\n", "annotations": [], "logprobs": []}],
            "status": "completed",
            "phase": None,
        },
        {**RESPONSES_CALL, "id": "fc_call_1", "status": "completed", "caller": None, "namespace": None},
        RESPONSES_RESULT,
    ],
    "tools": [{"type": "function", **FUNCTION}],
}

CLAUDE_CODE: Body = {
    "model": "policy",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.8a5; cc_entrypoint=cli;"},
        {"type": "text", "text": "You fix bugs.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>context</system-reminder>\n"},
                {"type": "text", "text": "Fix it.", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "Tools have changed."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": "turn_1"},
                {"type": "text", "text": "Let me look.\n"},
                {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "a.txt"}],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
    "tools": [{"name": "bash", "description": "Run a command", "input_schema": PARAMETERS}],
    "metadata": {"user_id": "user_1"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "stream": True,
}

CHAT_BODIES = {
    "mini-swe-agent": MINI_SWE_AGENT,
    "openai-agents": OPENAI_AGENTS,
    "langchain": LANGCHAIN,
    "pydantic-ai": PYDANTIC_AI,
    "smolagents": SMOLAGENTS,
    "pi": PI,
    "qwen-code": QWEN_CODE,
    "cline": CLINE,
}
RESPONSES_BODIES = {"codex": CODEX, "opencode": OPENCODE, "mini-swe-agent": MINI_SWE_AGENT_RESPONSES}
MESSAGES_BODIES = {"claude-code": CLAUDE_CODE}
