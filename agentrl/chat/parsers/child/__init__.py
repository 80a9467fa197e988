"""Parsers whose code or data is not trusted: turns are read in a child process, with a timeout."""
