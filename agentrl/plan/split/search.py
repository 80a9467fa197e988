"""Search for the best division of a fleet into trainer and engine, and for their layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from agentrl.config.rules.megatron import has_layouts
from agentrl.config.run import RunConfig
from agentrl.plan.calibration import Calibration
from agentrl.plan.hardware import Fleet
from agentrl.plan.layout import Kind, Layout, Servers, servers_of
from agentrl.plan.lengths import Lengths, RolloutLengths
from agentrl.plan.shapes import Shape
from agentrl.plan.split.layouts import layouts_for, servers_for
from agentrl.plan.split.replica import EngineSpeed
from agentrl.plan.split.simulate import Split, simulate
from agentrl.plan.time.flops import attention_flops
from agentrl.plan.time.passes import Passes, passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import hourly_price, planned_of, publish_s, samples_of, setting_of
from agentrl.plan.time.training import Training

MOST_ROLLOUTS, LEAST_SIMULATED, MOST_SIMULATED = 12_000, 3, 8
"""Divisions are simulated until they have so many rollouts together; the others are ranked by a bound."""
_PARTS = 16
"""Parts of the requests that are taken to end together."""
SERVER_NODES = 4
"""Nodes of one server, if servers run already."""
NUM_DIVISIONS = 12
"""Divisions that are tried. Of more, some with equal distances are."""


class Lack(NamedTuple):
    """Why a training layout does not fit. `share`: memory that it uses, as a multiple of what there is."""

    share: float
    text: str


Fits = Callable[[Layout], Lack | None]
"""Returns None if a training layout fits into the memory of its devices, else what is missing."""
KVTokens = Callable[[Servers], float]
"""Returns the tokens of KV that a server holds; 0 if its weights do not fit."""
Together = Callable[[Layout, Servers], str | None]
"""Returns None if a training layout and servers are possible together, else why not."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A division of the fleet.

    Attributes:
        train_s, rollout_s: seconds of all trainer work of a step if samples are divided equally, and of sampling its
            tokens at full concurrency.
        bound_s: seconds of a step that this division hardly goes below.
        split: the simulated run; None if `bound_s` is above the best simulated step, or too many are better.
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
        refused: what the layout lacks that lacks least, for trainers of each number of devices without one that fits.
    """

    ranked: list[Candidate]
    refused: dict[int, Lack]

    def why_not(self, candidate: Candidate) -> str:
        """Return why a candidate is behind the best, in a few words."""
        best, split = self.ranked[0], candidate.split
        if split is None:
            return f"at least {candidate.bound_s:.4g} s a step, because {_longer(candidate)}"
        slower = f"{split.step_s / best.step_s - 1:+.0%}"
        if split.staleness.keys() == {0}:
            return f"{slower}, because {_longer(candidate)}"
        if split.trainer_idle > split.engine_idle:
            return f"{slower}: the trainer waits for rollouts {split.trainer_idle:.0%} of the time"
        return f"{slower}: the engines are idle {split.engine_idle:.0%} of the time, because training is longer"


def search(
    shape: Shape,
    fleet: Fleet,
    lengths: Lengths,
    config: RunConfig,
    fits: Fits,
    kv_tokens: KVTokens,
    together: Together = lambda layout, servers: None,
    calibration: Calibration | None = None,
) -> Found:
    """Search divisions of a fleet in nodes (in devices, if there is one node), and sharing the devices of one node.

    For each, the training layout with the fastest update and the servers with the fastest sampling are taken.
    """
    fitted = calibration or Calibration(fleet.hardware)
    return _Search(shape, fleet, lengths, config, fits, kv_tokens, together, fitted).found()


@dataclass(frozen=True)
class _Search:
    shape: Shape
    fleet: Fleet
    lengths: Lengths
    config: RunConfig
    fits: Fits
    kv_tokens: KVTokens
    together: Together
    calibration: Calibration
    refused: dict[int, Lack] = field(default_factory=dict)

    def found(self) -> Found:
        ranked: list[Candidate] = []
        for candidate in sorted(self._candidates(), key=lambda candidate: candidate.bound_s):
            best = min((each.step_s for each in ranked if each.split), default=math.inf)
            promising = len(ranked) < self._num_simulated and candidate.bound_s < best
            ranked.append(self._simulated(candidate) if promising else candidate)
        return Found(sorted(ranked, key=lambda each: (each.split is None, each.step_s)), self.refused)

    def _candidates(self) -> Iterator[Candidate]:
        for devices, colocate in _divisions(self.fleet, self.config):
            rest = self.fleet.num_devices if colocate else self.fleet.num_devices - devices
            servers, layout = self._best_servers(rest, colocate), self._best_layout(devices)
            if layout is None or servers is None:
                continue
            (train_s, of_trainer), (rollout_s, of_engine) = layout, servers
            if reason := self.together(of_trainer, of_engine):
                self.refused[devices] = Lack(1.0, reason)
                continue
            serial = colocate or not self.config.trainer.max_staleness
            bound_s = train_s + rollout_s if serial else max(train_s, rollout_s)
            yield Candidate(of_trainer, of_engine, train_s, rollout_s, bound_s)

    def _best_layout(self, devices: int) -> tuple[float, Layout] | None:
        """Return the seconds of the fastest trainer that fits, and its layout."""
        kind: Kind = "megatron" if has_layouts(self.config) else "fsdp"
        per_node, base = self.fleet.hardware.devices_per_node, self.config.actor.megatron
        layouts = layouts_for(self.shape, devices, per_node, kind, base)
        ranked = [(self._training(layout).even_s(*self._work), n, layout) for n, layout in enumerate(layouts)]
        lacks: list[Lack] = []
        for seconds, _, layout in sorted(ranked, key=lambda each: each[:2]):
            if (found := self.fits(layout)) is None:
                return seconds, layout
            lacks.append(found)
        self.refused[devices] = min(lacks, default=Lack(math.inf, "no layout divides the model and the devices"))
        return None

    def _best_servers(self, devices: int, colocate: bool) -> tuple[float, Servers] | None:
        """Return the seconds of the fastest sampling of a step by servers that fit, and the servers."""
        per_node = self.fleet.hardware.devices_per_node
        nodes = SERVER_NODES if servers_of(self.config).elsewhere else 1  # a run starts no server over several nodes
        servers = list(servers_for(self.shape, devices, nodes * per_node, colocate=colocate))
        found = [(self._sampling_s(each, room), n) for n, each in enumerate(servers) if (room := self.kv_tokens(each))]
        seconds, number = min(found, default=(0.0, -1))
        return (seconds, servers[number]) if found else None

    def _sampling_s(self, servers: Servers, room: float) -> float:
        """Seconds to sample the tokens of a step, if replicas have equal work and tools take no time.

        Requests above the largest number of a replica start when others end. With staleness, those of later steps do.
        """
        planned, replicas = self._planned, servers.replicas * servers.data
        context = sum(each.num_tokens for each in planned) / len(planned) / 2  # half of its tokens, on average
        engine, number = self._engine(servers), len(planned) / replicas
        most = min(setting_of(self.config, servers).max_running, room / servers.data / context)
        staleness = self.config.trainer.max_staleness
        rows = max(1.0, min(number * (staleness + 1), most))
        later = number if staleness else number - rows
        turns = [turn for each in planned for turn in each.turns]
        sampled = sum(turn.sampled for turn in turns) / len(planned)
        decode_s = later * sampled / rows * engine.decode_s(rows, rows * context)
        decode_s += 0.0 if staleness else self._drained_s(engine, rows, context)
        new = sum(turn.new for turn in turns) / len(turns)
        return decode_s + len(turns) / replicas * engine.prefill_s(new, max(new, context))

    def _drained_s(self, engine: EngineSpeed, rows: float, context: float) -> float:
        """Seconds until `rows` requests have ended that start together: the shorter ones end first."""
        seconds, before = 0.0, 0
        for part, length in enumerate(self._quantiles):
            active = max(1.0, rows * (1 - part / _PARTS))
            seconds += (length - before) * engine.decode_s(active, active * context)
            before = length
        return seconds

    def _simulated(self, candidate: Candidate) -> Candidate:
        servers, layout, hardware = candidate.servers, candidate.layout, self.fleet.hardware
        sent_s = publish_s(self.shape, layout, servers, hardware, hardware)
        room = self.kv_tokens(servers) / servers.data
        setting = setting_of(self.config, servers, max_kv_tokens=room, publish_s=sent_s)
        setting = replace(setting, other_s=self.calibration.other_s)
        split = simulate(self.lengths, self._engine(servers), self._training(layout), setting)
        hourly = hourly_price(layout, servers, hardware)
        return replace(candidate, split=split, price=None if hourly is None else hourly * split.step_s / 3600)

    def _engine(self, servers: Servers) -> EngineSpeed:
        return self.calibration.engine(sampling_of(self.config, self.shape, servers, self.fleet.hardware))

    def _training(self, layout: Layout) -> Training:
        return Training(self.shape, layout, self.calibration.trainer, self._passes)

    @cached_property
    def _passes(self) -> Passes:
        return passes_of(self.config)

    @cached_property
    def _planned(self) -> list[RolloutLengths]:
        return planned_of(self.lengths, self.config, 0)

    @cached_property
    def _quantiles(self) -> list[int]:
        """Sampled tokens of a rollout: the quantiles 1 / n, 2 / n, ..., 1."""
        ordered = sorted(each.num_sampled for each in self._planned)
        return [ordered[-(-part * len(ordered) // _PARTS) - 1] for part in range(1, _PARTS + 1)]

    @property
    def _num_simulated(self) -> int:
        setting = setting_of(self.config, servers_of(self.config))
        of_one = len(self._planned) * (setting.num_steps + 2 * setting.warm_up)
        return max(LEAST_SIMULATED, min(MOST_SIMULATED, MOST_ROLLOUTS // of_one))

    @cached_property
    def _work(self) -> tuple[int, float]:
        """Tokens of the samples of a step, and the FLOPs of their attention."""
        positions = [each.token_ids for each in samples_of(self.lengths, self.config, 0)]
        attention = sum(attention_flops(self.shape, each[-1] + 1, each[0]) for each in positions)
        return sum(map(len, positions)), attention


def _divisions(fleet: Fleet, config: RunConfig) -> Iterator[tuple[int, bool]]:
    """(devices of the trainer, whether the engine shares them)."""
    one_node = fleet.num_devices <= fleet.hardware.devices_per_node
    unit = 1 if one_node else fleet.hardware.devices_per_node
    number = -(-fleet.num_devices // unit) - 1
    unit *= -(-number // NUM_DIVISIONS)
    yield from ((devices, False) for devices in range(unit, fleet.num_devices, unit))
    if one_node and not config.trainer.max_staleness:  # SGLang shares GPUs on one node only
        yield fleet.num_devices, True


def _longer(candidate: Candidate) -> str:
    if candidate.train_s > candidate.rollout_s:
        return f"training takes {candidate.train_s:.4g} s on {candidate.layout.devices} devices"
    return f"sampling takes {candidate.rollout_s:.4g} s on {candidate.servers.devices} devices"
