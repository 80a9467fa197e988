"""Parsing with code or rules of others, in child processes with a timeout."""
