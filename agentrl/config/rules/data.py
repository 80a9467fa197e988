"""Rules for options of `data.*` that have no effect with other options."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.data import PASS_RATE, DataConfig
from agentrl.config.rules.unused import every, given, unused, wrong
from agentrl.config.run import RunConfig
from agentrl.errors import Kind, Problem


def ignored_in_data(config: RunConfig) -> Iterator[Problem]:
    """Yield one error per given option of `data.*` without effect."""
    data = config.data
    yield from _curriculum(data)
    if not data.online.max_tasks:
        yield from unused("data.online", data.online, ("when_full", "share"), "`data.online.max_tasks` above 0")
    if data.custom_cls.path is not None:
        need = "the built-in datasets: with `data.custom_cls` one class reads all files"
        yield from unused("data", data, ("dataset_weights", "output_path"), need)
    if not config.algorithm.live:
        need = f"rollouts: `algorithm.name={config.algorithm.name}` trains on dataset rows"
        yield from _given_of(data, ("curriculum", "online", "custom_cls"), need)
    if config.trainer.mode == "rollout_only":
        learning = ("curriculum", "online") if data.curriculum.by == PASS_RATE else ("online",)
        yield from _given_of(data, learning, "`trainer.mode=train`: `rollout_only` uses every row of an epoch once")


def _curriculum(data: DataConfig) -> Iterator[Problem]:
    where, curriculum = "data.curriculum", data.curriculum
    if curriculum.by != PASS_RATE:
        yield from unused(where, curriculum, ("target", "floor", "smoothing"), f"`{where}.by={PASS_RATE}`")
    if curriculum.by in (None, PASS_RATE):
        yield from unused(where, curriculum, ("values", "descending"), f"a column in `{where}.by`")


def _given_of(data: DataConfig, sections: tuple[str, ...], need: str) -> Iterator[Problem]:
    for name in sections:
        section = getattr(data, name)
        if any(given(section, option) for option in every(section)):
            yield wrong(f"data.{name}", f"has no effect without {need}", Kind.UNUSED)
