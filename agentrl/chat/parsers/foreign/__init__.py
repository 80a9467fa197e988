"""Parsing with third-party code or rules, in child processes with a timeout."""
