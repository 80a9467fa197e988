"""Sandbox Fusion: a server that runs programs and keeps nothing between calls."""
