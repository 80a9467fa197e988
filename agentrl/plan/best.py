"""Find the best division of the devices between trainer and engine, and say why other divisions are slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.config.resolve import with_values
from agentrl.config.run import RunConfig
from agentrl.plan.calibration import Calibration
from agentrl.plan.hardware import GIB, Fleet
from agentrl.plan.layout import Layout, Servers
from agentrl.plan.lengths import Lengths
from agentrl.plan.memory.changes import keys_text, refused
from agentrl.plan.memory.fit import Use, fit_of, room_for_kv, server_room
from agentrl.plan.shapes import Shape
from agentrl.plan.split.candidates import Candidate, Found, Lack, compared, took
from agentrl.plan.split.keys import server_keys, training_keys
from agentrl.plan.split.search import search

NUM_SHOWN = 3
"""Number of divisions that are shown after the best one."""
NOTICEABLE = 1.03
"""A division counts as faster than the configuration if the division's step is shorter by more than this factor."""


@dataclass(frozen=True, slots=True)
class Best:
    """Divisions of the devices of a configuration, best first."""

    config: RunConfig
    fleet: Fleet
    found: Found

    def keys(self, candidate: Candidate) -> str:
        """Return, as text, the keys with which the configuration gets the layout and the servers of a candidate."""
        per_node = self.fleet.hardware.devices_per_node
        return keys_text(_keys(self.config, per_node, candidate.layout, candidate.servers))


def best_of(
    config: RunConfig, shape: Shape, fleet: Fleet, lengths: Lengths, calibration: Calibration | None = None
) -> Best:
    """Among the divisions whose devices have enough memory, search for the division with the shortest step."""
    within = _Memory(config, shape, fleet.hardware.memory_gib * GIB, fleet.hardware.devices_per_node)
    checks = within.trainer_lacks, within.serves, within.together
    return Best(config, fleet, search(shape, fleet, lengths, config, *checks, calibration))


def _keys(config: RunConfig, per_node: int, layout: Layout, servers: Servers) -> dict[str, object]:
    return training_keys(layout, config, per_node) | server_keys(servers, config, layout, per_node)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Checks that trainers and servers fit into the memory of their devices, and that a division's keys are valid."""

    config: RunConfig
    shape: Shape
    memory: float
    per_node: int

    def trainer_lacks(self, layout: Layout) -> Lack | None:
        """See `Fits` in `plan.split.search`."""
        servers = Servers(embedded=False, replicas=len(self.config.rollout.sglang.urls) or 1, colocate=False)
        changed = self._changed(layout, servers)
        uses = fit_of(changed, self.shape, self.memory).uses
        lacking = (_lacking(use) for use in uses if use.device.startswith("trainer") and not use.fits)
        if found := next(lacking, None):
            return found
        reason = refused(changed)
        return Lack(True, 1.0, reason) if reason else None

    def serves(self, servers: Servers) -> float | Lack:
        """See `Serves` in `plan.split.search`."""
        tokens, use = server_room(self.config, self.shape, servers, self.memory)
        return tokens if use.fits else _lacking(use)

    def together(self, layout: Layout, servers: Servers) -> float | str:
        """See `Together` in `plan.split.search`."""
        changed = self._changed(layout, servers)
        lacking = (_lacking(use).text for use in fit_of(changed, self.shape, self.memory).uses if not use.fits)
        reason = next(lacking, None) or refused(changed)
        return reason or room_for_kv(changed, self.shape, self.memory)

    def _changed(self, layout: Layout, servers: Servers) -> RunConfig:
        return with_values(self.config, _keys(self.config, self.per_node, layout, servers))


def _lacking(use: Use) -> Lack:
    part, size = use.largest, use.parts[use.largest]
    of_trainer = use.device.startswith("trainer")
    numbers = f"{use.total / GIB:.0f} of {use.available / GIB:.0f} GiB, most of it {part}, {size / GIB:.0f} GiB"
    return Lack(of_trainer, use.total / max(1.0, use.available), f"{use.device}: {numbers}")


def best_lines(best: Best, step_s: float | None) -> Iterator[str]:
    """Yield the lines about the best division, its keys, and the other divisions.

    Args:
        step_s: seconds of a step of the configuration; None if the configuration does not fit the devices.
    """
    ranked = best.found.ranked
    if not ranked:
        devices, lack = min(best.found.refused.items(), key=lambda item: item[1])
        yield f"no division of {best.fleet} fits; closest: training on {devices}, {lack.text}"
        return
    first = ranked[0]
    if step_s is not None and step_s <= first.step_s * NOTICEABLE:
        yield f"no division of {best.fleet} is more than {NOTICEABLE - 1:.0%} faster than the configuration; tried:"
        yield from (f"  {_title(each)}: {took(each)}, {_against(each, step_s)}" for each in ranked)
        return
    faster = "" if step_s is None else f", {_against(first, step_s)}"
    yield f"best division of {best.fleet}: {_title(first)}: {_costs(first)}{faster}"
    yield f"  {best.keys(first)}"
    for each in ranked[1 : NUM_SHOWN + 1]:
        yield f"  {_title(each)}: {best.found.why_not(each)}"


def _against(each: Candidate, step_s: float) -> str:
    return compared(each.step_s, step_s, "the configuration")


def best_json(best: Best) -> list[JsonValue]:
    """Return all divisions, best first."""
    return [
        {
            "training": each.layout.devices,
            "servers": each.servers.replicas,
            "devices_of_a_server": each.servers.tensor,
            "same_devices": each.servers.colocate,
            "keys": best.keys(each),
            "step_s": each.step_s,
            "simulated": each.split is not None,
            "price_per_step": each.price,
            "why_not": best.found.why_not(each) if number else None,
        }
        for number, each in enumerate(best.found.ranked)
    ]


def _title(each: Candidate) -> str:
    servers, devices = each.servers.replicas, each.servers.tensor
    where = " on the same devices" if each.servers.colocate else ""
    sampling = f"{servers} server{_s(servers)} with {devices} device{_s(devices)}{' each' if servers > 1 else ''}"
    return f"training on {each.layout.devices}{_sizes(each.layout)}, {sampling}{where}"


def _s(number: int) -> str:
    return "" if number == 1 else "s"


def _sizes(layout: Layout) -> str:
    sizes = {
        "TP": layout.tensor,
        "PP": layout.pipeline,
        "Ulysses" if layout.kind == "fsdp" else "CP": layout.context,
        "EP": layout.expert,
    }
    shown = " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    return f" ({shown})" if shown else ""


def _costs(each: Candidate) -> str:
    price = "" if each.price is None else f", ${each.price:.3g}"
    return f"{each.step_s:.3g} s a step{price}"
