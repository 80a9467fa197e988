"""Parsers of formats whose calls stand between special tokens."""
