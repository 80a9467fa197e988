"""Combinations that dynamic sampling, or a reference that follows the policy, cannot work with."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.run import RunConfig

_FILTER = "'algorithm.filter_groups.enable=true'"
_SYNC = "'ref.sync_steps'"


def wrong_in_sampling(config: RunConfig) -> Iterator[str]:
    """Lines that make a configuration unusable for training."""
    if config.algorithm.filter_groups.enable:
        yield from _wrong_with_filter(config)
    if config.ref.sync_steps:
        yield from _wrong_with_sync(config)


def _wrong_with_filter(config: RunConfig) -> Iterator[str]:
    if config.trainer.mode in ("rollout_only", "train_only"):
        yield f"{_FILTER} has no effect without 'trainer.mode=train'"
    if config.rollout.n < 2:
        yield f"{_FILTER} keeps groups whose rollouts differ: set 'rollout.n' to 2 or more"


def _wrong_with_sync(config: RunConfig) -> Iterator[str]:
    if config.model.lora_rank or config.model.lora_adapter_path:
        yield f"{_SYNC} copies whole weights, and a LoRA adapter is trained: leave one of them out"
    if config.ref.path and config.actor.freeze_modules:
        yield f"{_SYNC} copies what is trained, and with 'actor.freeze_modules' the rest is still that of 'ref.path'"
