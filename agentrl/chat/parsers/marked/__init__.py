"""Parsers of formats whose calls are between special tokens."""
