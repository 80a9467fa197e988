"""Reads tasks from folders in Harbor's format."""
