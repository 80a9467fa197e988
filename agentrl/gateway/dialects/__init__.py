"""Dialects of the gateway: Chat Completions and Responses (OpenAI), Messages (Anthropic)."""
