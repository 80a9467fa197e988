"""Publish weights from a backend to an engine."""
