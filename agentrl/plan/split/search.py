"""Search for the best division of a fleet into trainer and engine, and for their layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from agentrl.config.rules.megatron import has_layouts
from agentrl.config.run import RunConfig
from agentrl.plan.calibration import Calibration
from agentrl.plan.hardware import Fleet
from agentrl.plan.layout import Kind, Layout, Servers, servers_of
from agentrl.plan.lengths import Lengths, RolloutLengths
from agentrl.plan.shapes import Shape
from agentrl.plan.split.candidates import Candidate, Found, Lack
from agentrl.plan.split.layouts import layouts_for, servers_for
from agentrl.plan.split.replica import EngineSpeed
from agentrl.plan.split.simulate import simulate
from agentrl.plan.time.flops import attention_flops
from agentrl.plan.time.passes import Passes, passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import hourly_price, planned_of, samples_of, setting_of
from agentrl.plan.time.training import Training

MOST_ROLLOUTS, LEAST_SIMULATED, MOST_SIMULATED = 12_000, 3, 8
"""Limits of a search: rollouts in all simulations together, and the fewest and most divisions that are simulated.
Divisions that are not simulated are ranked by `bound_s`."""
_PARTS = 16
"""Number of parts into which requests are divided by length; requests of one part are assumed to end together."""
SERVER_NODES = 4
"""Maximum number of nodes of one server, if servers run already."""
NUM_DIVISIONS = 12
"""Maximum number of divisions that are tried; if there are more, every n-th is tried."""


Fits = Callable[[Layout], Lack | None]
"""Returns None if a training layout is valid and fits into the memory of its devices, else why not."""
Serves = Callable[[Servers], float | Lack]
"""Returns how many tokens of KV cache a server holds, or why it has no room for the rollouts."""
Together = Callable[[Layout, Servers], float | str]
"""Returns how many tokens of KV cache each data-parallel part of a server holds, or why trainer and servers together
are not possible."""


def search(
    shape: Shape,
    fleet: Fleet,
    lengths: Lengths,
    config: RunConfig,
    fits: Fits,
    serves: Serves,
    together: Together,
    calibration: Calibration | None = None,
) -> Found:
    """Search for the best division of a fleet into training devices and servers.

    In a fleet of several nodes, each node trains or serves. On a single node, each device trains or serves, or all
    devices do both in turn. Each division uses the fastest training layout and the fastest servers that are possible
    together.
    """
    fitted = calibration or Calibration(fleet.hardware)
    return _Search(shape, fleet, lengths, config, fits, serves, together, fitted).found()


@dataclass(frozen=True)
class _Search:
    shape: Shape
    fleet: Fleet
    lengths: Lengths
    config: RunConfig
    fits: Fits
    serves: Serves
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
            found = self._fastest(devices, colocate)
            if isinstance(found, Lack):
                self.refused[devices] = found
            else:
                yield found

    def _fastest(self, devices: int, colocate: bool) -> Candidate | Lack:
        """Return the fastest layout and servers that fit a division; if none fit, the smallest `Lack`."""
        servers, lacks = self._servers(self.fleet.num_devices - (0 if colocate else devices), colocate)
        missing = [Lack(True, math.inf, "no layout divides the model and the devices")]
        for train_s, layout in self._layouts(devices):
            if lack := self.fits(layout):
                missing.append(lack)
                continue
            if not servers:
                return min(lacks)
            for rollout_s, each in servers:
                if not isinstance(room := self.together(layout, each), str):
                    return Candidate(layout, each, train_s, rollout_s, self._bound_s(train_s, rollout_s, each), room)
                missing.append(Lack(False, 1.0, room))
        return min(missing)

    def _bound_s(self, train_s: float, rollout_s: float, servers: Servers) -> float:
        in_turns = servers.colocate or not self._overlaps
        return train_s + rollout_s if in_turns else max(train_s, rollout_s)

    def _layouts(self, devices: int) -> list[tuple[float, Layout]]:
        """Return (seconds of the trainer, layout) for each layout, fastest first."""
        kind: Kind = "megatron" if has_layouts(self.config) else "fsdp"
        per_node, base = self.fleet.hardware.devices_per_node, self.config.actor.megatron
        layouts = layouts_for(self.shape, devices, per_node, kind, base)
        ranked = [(self._training(layout).even_s(*self._work), layout) for layout in layouts]
        return sorted(ranked, key=lambda each: each[0])

    def _servers(self, devices: int, colocate: bool) -> tuple[list[tuple[float, Servers]], list[Lack]]:
        """Return (seconds to sample a step, servers) for servers that fit, fastest first; and why others do not fit.

        If servers run already, their number is the number of addresses in `rollout.sglang.urls`.
        """
        given, per_node = servers_of(self.config), self.fleet.hardware.devices_per_node
        nodes = SERVER_NODES if given.elsewhere else 1  # a server that the run starts uses one node
        number = len(self.config.rollout.sglang.urls)
        lacks = [Lack(False, math.inf, _indivisible(devices, number))]
        ranked: list[tuple[float, Servers]] = []
        for each in servers_for(self.shape, devices, nodes * per_node, colocate=colocate, number=number):
            servers = replace(each, memory_share=given.memory_share)
            if isinstance(room := self.serves(servers), Lack):
                lacks.append(room)
            else:
                ranked.append((self._sampling_s(servers, room), servers))
        return sorted(ranked, key=lambda each: each[0]), lacks

    def _sampling_s(self, servers: Servers, room: float) -> float:
        """Seconds to sample the tokens of a step, if replicas have equal work and tools take no time.

        Requests beyond the maximum of a replica start when other requests end. If rollouts run during updates, requests
        of later steps run at the same time.
        """
        planned, replicas = self._planned, servers.replicas * servers.data
        context = sum(each.num_tokens for each in planned) / len(planned) / 2  # mean length over the time of a rollout
        engine, number = self._engine(servers), len(planned) / replicas
        most = min(setting_of(self.config, servers).max_running, room / servers.data / context)
        at_once = 1 + self.config.trainer.max_staleness + self.config.trainer.over_sampling
        rows = max(1.0, min(number * at_once, most))
        later = number if self._overlaps else max(0.0, number - rows)
        turns = [turn for each in planned for turn in each.turns]
        sampled = sum(turn.sampled for turn in turns) / len(planned)
        decode_s = later * sampled / rows * engine.decode_s(rows, rows * context)
        decode_s += 0.0 if self._overlaps else self._drained_s(engine, rows, context)
        new = sum(turn.new for turn in turns) / len(turns)
        return decode_s + len(turns) / replicas * engine.prefill_s(new, max(new, context))

    def _drained_s(self, engine: EngineSpeed, rows: float, context: float) -> float:
        """Seconds until `rows` requests that start together have all ended; shorter requests end first."""
        seconds, before = 0.0, 0
        for part, length in enumerate(self._quantiles):
            active = max(1.0, rows * (1 - part / _PARTS))
            seconds += (length - before) * engine.decode_s(active, active * context)
            before = length
        return seconds

    def _simulated(self, candidate: Candidate) -> Candidate:
        servers, layout, hardware = candidate.servers, candidate.layout, self.fleet.hardware
        sent_s = self.calibration.publishing_s(self.shape, layout, servers, hardware)
        setting = setting_of(self.config, servers, max_kv_tokens=candidate.kv_tokens, publish_s=sent_s)
        setting = replace(setting, other_s=self.calibration.other_s)
        split = simulate(self.lengths, self._engine(servers), self._training(layout), setting)
        hourly = hourly_price(layout, servers, hardware)
        return replace(candidate, split=split, price=None if hourly is None else hourly * split.step_s / 3600)

    def _engine(self, servers: Servers) -> EngineSpeed:
        return self.calibration.engine(sampling_of(self.config, self.shape, servers, self.fleet.hardware))

    def _training(self, layout: Layout) -> Training:
        return Training(self.shape, layout, self.calibration.trainer, self._passes)

    @cached_property
    def _overlaps(self) -> bool:
        return setting_of(self.config, servers_of(self.config)).overlaps

    @cached_property
    def _passes(self) -> Passes:
        return passes_of(self.config)

    @cached_property
    def _planned(self) -> list[RolloutLengths]:
        return planned_of(self.lengths, self.config, 0)

    @cached_property
    def _quantiles(self) -> list[int]:
        """Quantiles 1 / n, 2 / n, ..., 1 of the number of tokens that a rollout samples, for n = `_PARTS`."""
        ordered = sorted(each.num_sampled for each in self._planned)
        return [ordered[-(-part * len(ordered) // _PARTS) - 1] for part in range(1, _PARTS + 1)]

    @property
    def _num_simulated(self) -> int:
        setting = setting_of(self.config, servers_of(self.config))
        of_one = len(self._planned) * (setting.num_steps + 2 * setting.warm_up)
        return max(LEAST_SIMULATED, min(MOST_SIMULATED, MOST_ROLLOUTS // of_one))

    @cached_property
    def _work(self) -> tuple[int, float]:
        """Number of tokens in the samples of a step, and the FLOPs of attention in these samples."""
        positions = [each.token_ids for each in samples_of(self.lengths, self.config, 0)]
        attention = sum(attention_flops(self.shape, each[-1] + 1, each[0]) for each in positions)
        return sum(map(len, positions)), attention


def _divisions(fleet: Fleet, config: RunConfig) -> Iterator[tuple[int, bool]]:
    """Yield (number of training devices, whether the engine shares them)."""
    one_node = fleet.num_devices <= fleet.hardware.devices_per_node
    unit = 1 if one_node else fleet.hardware.devices_per_node
    number = -(-fleet.num_devices // unit) - 1
    unit *= -(-number // NUM_DIVISIONS)
    yield from ((devices, False) for devices in range(unit, fleet.num_devices, unit))
    trainer, urls = config.trainer, config.rollout.sglang.urls
    if one_node and not (trainer.max_staleness or trainer.over_sampling or urls):  # SGLang shares GPUs on one node only
        yield fleet.num_devices, True


def _indivisible(devices: int, number: int) -> str:
    if number:
        return f"{number} servers of equal size cannot use all {devices} other devices (`rollout.sglang.urls`)"
    return f"no size of servers divides the model and {devices} devices"
