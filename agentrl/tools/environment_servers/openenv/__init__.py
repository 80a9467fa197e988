"""Servers of OpenEnv, over a WebSocket."""
