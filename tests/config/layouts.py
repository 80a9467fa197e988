"""A backend that reads `actor.megatron`, without its libraries."""

from __future__ import annotations

from agentrl.capabilities import BACKEND_OPTIONS, BACKENDS, BackendSpec

NAME = "with_layouts"
TORCH_ONLY = {"autocast", "fsdp_size", "ulysses_sequence_parallel_size"}


def register_layouts(monkeypatch, **capabilities) -> str:
    """Register the backend for a test, and return its name."""
    monkeypatch.setattr(BACKENDS, "_objects", {**BACKENDS._objects})
    supported = {"options": frozenset(BACKEND_OPTIONS) - TORCH_ONLY, "lora": True, "several_processes": True}
    BACKENDS.register(NAME)(BackendSpec(load=print, **{**supported, **capabilities}))
    return NAME
