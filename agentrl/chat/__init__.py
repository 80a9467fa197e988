"""Conversion between messages and tokens: chat templates applied turn by turn, and parsers of tool calls."""
