"""Search for the best division of a fleet into trainer and engine, and for their layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agentrl.config.run import RunConfig
from agentrl.plan.hardware import Fleet
from agentrl.plan.layout import Backend, Layout, Servers
from agentrl.plan.lengths import Lengths
from agentrl.plan.shapes import Shape
from agentrl.plan.split.layouts import layouts_for, servers_for
from agentrl.plan.split.simulate import Split, simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import hourly_price, planned_of, publish_s, samples_of, setting_of
from agentrl.plan.time.training import Training

NUM_SIMULATED = 5
"""Splits that are simulated; the others are ranked by a bound."""

Fits = Callable[[Layout], str | None]
"""Returns None if a training layout fits into the memory of its devices, else what is missing."""
KVTokens = Callable[[Servers], float]
"""Returns the tokens of KV that a server holds; 0 if its weights do not fit."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A division of the fleet.

    Attributes:
        bound_s: seconds of a step that this division cannot go below.
        train_s, rollout_s: seconds of all trainer work of a step, and of sampling its tokens at full concurrency.
        split: the simulated run; None if `bound_s` is above the best simulated step.
        price: US dollars per step; None if a price is unknown.
    """

    layout: Layout
    servers: Servers
    train_s: float
    rollout_s: float
    bound_s: float
    split: Split | None = None
    price: float | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step: simulated, or else the bound."""
        return self.split.step_s if self.split else self.bound_s


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search.

    Attributes:
        ranked: the candidates, best first; those without a simulation come last.
        refused: why layouts do not fit, for trainers of each number of devices that has no layout.
    """

    ranked: list[Candidate]
    refused: dict[int, str]

    def why_not(self, candidate: Candidate) -> str:
        """Return why a candidate is behind the best, in a few words."""
        best, split = self.ranked[0], candidate.split
        if split is None:
            return f"at least {candidate.bound_s:.4g} s a step, because {_longer(candidate)}"
        slower = split.step_s / best.step_s - 1
        if split.trainer_idle > split.engine_idle:
            return f"{slower:+.0%}: the trainer waits for rollouts {split.trainer_idle:.0%} of the time"
        return f"{slower:+.0%}: the engines are idle {split.engine_idle:.0%} of the time, because training is longer"


def search(shape: Shape, fleet: Fleet, lengths: Lengths, config: RunConfig, fits: Fits, kv_tokens: KVTokens) -> Found:
    """Search all divisions of a fleet in nodes (in devices, if there is one node), and sharing the devices of one node.

    For each, the training layout with the fastest update and the servers with the fastest sampling are taken.
    """
    refused: dict[int, str] = {}
    candidates = _candidates(shape, fleet, lengths, config, fits, kv_tokens, refused)
    found = sorted(candidates, key=lambda candidate: candidate.bound_s)
    ranked: list[Candidate] = []
    for candidate in found:
        best = min((each.step_s for each in ranked if each.split), default=float("inf"))
        simulated = len(ranked) < NUM_SIMULATED and candidate.bound_s < best
        ranked.append(_simulated(candidate, shape, fleet, lengths, config, kv_tokens) if simulated else candidate)
    return Found(sorted(ranked, key=lambda each: (each.split is None, each.step_s)), refused)


def _candidates(
    shape: Shape,
    fleet: Fleet,
    lengths: Lengths,
    config: RunConfig,
    fits: Fits,
    kv_tokens: KVTokens,
    refused: dict[int, str],
) -> Iterator[Candidate]:
    for devices, colocate in _divisions(fleet, config):
        layout = _best_layout(shape, fleet, lengths, config, fits, devices, refused)
        rest = fleet.num_devices if colocate else fleet.num_devices - devices
        servers = _best_servers(shape, fleet, lengths, config, kv_tokens, rest, colocate)
        if layout is None or servers is None:
            continue
        train_s, rollout_s = layout[1], servers[1]
        serial = colocate or not config.trainer.max_staleness
        yield Candidate(
            layout[0], servers[0], train_s, rollout_s, train_s + rollout_s if serial else max(train_s, rollout_s)
        )


def _divisions(fleet: Fleet, config: RunConfig) -> Iterator[tuple[int, bool]]:
    """(devices of the trainer, whether the engine shares them)."""
    one_node = fleet.num_devices <= fleet.hardware.devices_per_node
    unit = 1 if one_node else fleet.hardware.devices_per_node
    yield from ((devices, False) for devices in range(unit, fleet.num_devices, unit))
    if one_node and not config.trainer.max_staleness:  # SGLang shares GPUs on one node only
        yield fleet.num_devices, True


def _best_layout(
    shape: Shape,
    fleet: Fleet,
    lengths: Lengths,
    config: RunConfig,
    fits: Fits,
    devices: int,
    refused: dict[int, str],
) -> tuple[Layout, float] | None:
    """Return the layout with the fastest trainer that fits, and its seconds."""
    backend: Backend = "megatron" if config.actor.backend == "megatron" else "fsdp"
    passes, samples = passes_of(config), samples_of(lengths, config, 0)
    ranked: list[tuple[float, int, Layout]] = []
    for number, layout in enumerate(
        layouts_for(shape, devices, fleet.hardware.devices_per_node, backend, config.actor.megatron)
    ):
        trainer = Training(shape, layout, fleet.hardware, passes)
        ranked.append((trainer.learn_s(samples) + trainer.score_s(samples), number, layout))
    for seconds, _, layout in sorted(ranked):
        if (missing := fits(layout)) is None:
            return layout, seconds
        refused[devices] = missing
    return None


def _best_servers(
    shape: Shape,
    fleet: Fleet,
    lengths: Lengths,
    config: RunConfig,
    kv_tokens: KVTokens,
    devices: int,
    colocate: bool,
) -> tuple[Servers, float] | None:
    """Return the servers that fit with the fastest sampling of a step, and its seconds."""
    planned = planned_of(lengths, config, 0)
    sampled = sum(each.num_sampled for each in planned)
    computed = sum(turn.new for each in planned for turn in each.turns)
    context = sum(each.num_tokens for each in planned) / len(planned) / 2  # half of its tokens, on average
    at_once = len(planned) * (config.trainer.max_staleness + 1)
    found: list[tuple[float, int, Servers]] = []
    for number, servers in enumerate(servers_for(shape, devices, fleet.hardware.devices_per_node, colocate=colocate)):
        if room := kv_tokens(servers):
            rows = max(1.0, min(at_once / servers.replicas, setting_of(config, servers).max_running, room / context))
            engine = sampling_of(config, shape, servers, fleet.hardware)
            decode_s = sampled / servers.replicas / rows * engine.decode_s(rows, rows * context)
            prefill_s = engine.prefill_s(computed / servers.replicas, context)
            found.append((decode_s + prefill_s, number, servers))
    if not found:
        return None
    seconds, _, servers = min(found)
    return servers, seconds


def _simulated(
    candidate: Candidate, shape: Shape, fleet: Fleet, lengths: Lengths, config: RunConfig, kv_tokens: KVTokens
) -> Candidate:
    hardware, servers, layout = fleet.hardware, candidate.servers, candidate.layout
    engine = sampling_of(config, shape, servers, hardware)
    trainer = Training(shape, layout, hardware, passes_of(config))
    sent_s = publish_s(shape, layout, servers, hardware, hardware)
    setting = setting_of(config, servers, max_kv_tokens=kv_tokens(servers), publish_s=sent_s)
    split = simulate(lengths, engine, trainer, setting, num_steps=4)
    hourly = hourly_price(layout, servers, hardware)
    return replace(candidate, split=split, price=None if hourly is None else hourly * split.step_s / 3600)


def _longer(candidate: Candidate) -> str:
    if candidate.train_s > candidate.rollout_s:
        return f"training takes {candidate.train_s:.4g} s on {candidate.layout.devices} devices"
    return f"sampling takes {candidate.rollout_s:.4g} s on {candidate.servers.devices} devices"
