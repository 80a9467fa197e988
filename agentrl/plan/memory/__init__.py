"""Predicted memory by part, for a device that trains and for a device of an engine."""
