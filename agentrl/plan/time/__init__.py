"""Seconds of a step by phase, from FLOPs, bytes and hardware figures."""
