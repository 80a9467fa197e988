"""Limits and sanitizing for untrusted data: JSON depth and size, visible text, secrets."""
