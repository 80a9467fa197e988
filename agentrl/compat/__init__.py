"""Compatibility with code written for other libraries."""
