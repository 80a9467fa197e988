"""Check whether a run fits into memory: on the fullest device that trains, and on a device of an engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.plan.layout import Servers, layout_of, servers_of
from agentrl.plan.memory.serving import USUAL_SHARE, Engine, engine_of
from agentrl.plan.memory.training import Trainer, stages_of
from agentrl.plan.shapes import Shape

ROOM = 0.25
"""Share of the running rollouts for which an engine must have room. The other rollouts wait, which only costs time."""
TRAINING_MODES = ("train", "train_only")


@dataclass(frozen=True, slots=True)
class Use:
    """Memory of a device in the phase that needs the most memory.

    Attributes:
        device: `trainer` or `engine`.
        phase: name of the phase.
        parts: bytes of each part.
        available: bytes that all parts together may use.
    """

    device: str
    phase: str
    parts: Mapping[str, float]
    available: float

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether all parts together fit into the available memory."""
        return self.total <= self.available

    @property
    def largest(self) -> str:
        """The largest part."""
        return max(self.parts, key=lambda part: self.parts[part])


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory of the devices of a run.

    Attributes:
        uses: one entry for the fullest training device if the run trains, and one for a device of an engine if the run
            has servers of known size. An embedded engine counts as a part of the training device. Without training, it
            has a separate entry.
        at_once: number of rollouts of mean length whose KV cache fits into an engine; None: unknown.
        running: number of rollouts that run on one engine at a time.
    """

    uses: list[Use]
    at_once: int | None
    running: int

    @property
    def fits(self) -> bool:
        """Whether everything fits."""
        return all(use.fits for use in self.uses)

    @property
    def worst(self) -> Use:
        """The device that needs the largest share of its available memory."""
        return max(self.uses, key=lambda use: use.total / max(1.0, use.available))


def fit_of(config: RunConfig, shape: Shape, memory: float, *, on_cpu: bool = False) -> Fit:
    """Return the memory use of each kind of device.

    Args:
        memory: memory of a device, in bytes.
    """
    servers, trains = servers_of(config), config.trainer.mode in TRAINING_MODES
    engine = engine_of(config, shape, servers) if config.algorithm.live else None
    beside = _embedded(engine) if engine and servers.embedded else {}
    trainer = Trainer(config, shape, layout_of(config), on_cpu=on_cpu)
    uses = [_fullest(each, beside if not each.stage else {}, memory) for each in stages_of(trainer)] if trains else []
    uses = [max(uses, key=lambda use: use.total)] if uses else []
    if not uses and beside:
        uses = [Use("engine", "rollouts", beside, memory)]
    if engine is None or servers.embedded or not servers.sized or on_cpu:
        return Fit(uses, None, 0)
    usable = usable_bytes(servers, memory, _kept(config, shape, servers))
    uses.append(_server_use(engine, usable))
    at_once = engine.tokens_in(usable) * engine.running // max(1, engine.needed_tokens)
    return Fit(uses, min(engine.running, at_once), engine.running)


def usable_bytes(servers: Servers, memory: float, kept: float = 0) -> float:
    """Return the bytes of a device that a server may use.

    Args:
        kept: bytes that training keeps on the device while rollouts are sampled.
    """
    return min((servers.memory_share or USUAL_SHARE) * memory, memory - kept)


def room_for_kv(config: RunConfig, shape: Shape, memory: float) -> float:
    """Return how many tokens of KV cache an engine holds; infinite without a limit.

    For a server, this is the number for each of its data-parallel parts. The result is also infinite if a rollout of
    maximum length does not fit, because `fit_of` already reports this problem.
    """
    servers = servers_of(config)
    if servers.embedded:
        return config.rollout.max_kv_tokens or math.inf
    engine = engine_of(config, shape, servers)
    tokens = engine.tokens_in(usable_bytes(servers, memory, _kept(config, shape, servers)))
    return tokens / servers.data if tokens >= engine.longest else math.inf


def server_room(config: RunConfig, shape: Shape, servers: Servers, memory: float) -> tuple[int, Use]:
    """Return how many tokens of KV cache a server holds, and the memory that one of its devices needs (see `ROOM`)."""
    engine, usable = engine_of(config, shape, servers), usable_bytes(servers, memory)
    return engine.tokens_in(usable), _server_use(engine, usable)


def _kept(config: RunConfig, shape: Shape, servers: Servers) -> float:
    """Bytes that training keeps on the devices of servers."""
    if not servers.colocate or config.trainer.mode not in TRAINING_MODES:
        return 0.0
    return sum(Trainer(config, shape, layout_of(config)).between().values())


def _server_use(engine: Engine, usable: float) -> Use:
    return Use("engine", "rollouts", {"weights": engine.weights, "KV cache": _needed(engine)}, usable)


def _embedded(engine: Engine) -> dict[str, float]:
    return {"engine's weights": engine.weights, "KV cache": _needed(engine)}


def _needed(engine: Engine) -> float:
    return engine.kv_token * _needed_tokens(engine)


def _needed_tokens(engine: Engine) -> int:
    tokens = max(engine.longest, round(ROOM * engine.needed_tokens))
    return tokens if engine.limit is None else min(tokens, engine.limit)


def _fullest(trainer: Trainer, beside: Mapping[str, float], memory: float) -> Use:
    phases = {name: {**parts, **beside} for name, parts in trainer.phases().items()}
    phase = max(phases, key=lambda name: sum(phases[name].values()))
    name = f"trainer, stage {trainer.stage}" if trainer.layout.pipeline > 1 else "trainer"
    return Use(name, phase, phases[phase], memory)
