"""Conversion between messages and tokens: chat templates continued turn by turn, and parsers of tool calls."""
