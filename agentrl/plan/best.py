"""The best division of the devices, with the keys to paste, and why others are behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from pydantic import JsonValue

from agentrl.config.resolve import with_values
from agentrl.config.run import RunConfig
from agentrl.plan.calibration import Calibration
from agentrl.plan.hardware import Fleet
from agentrl.plan.layout import Layout, Servers
from agentrl.plan.lengths import Lengths
from agentrl.plan.memory.changes import keys_text, refused
from agentrl.plan.memory.fit import GIB, Use, fit_of, kv_tokens
from agentrl.plan.shapes import Shape
from agentrl.plan.split.keys import server_keys, training_keys
from agentrl.plan.split.search import Candidate, Found, Lack, search

NUM_SHOWN = 3
"""Divisions behind the best that are shown."""
NOTICEABLE = 1.03
"""A division is better than the configuration if steps of the configuration take this many times as long."""


@dataclass(frozen=True, slots=True)
class Best:
    """Divisions of the devices of a configuration, best first."""

    config: RunConfig
    fleet: Fleet
    found: Found

    def keys(self, candidate: Candidate) -> str:
        """Return the keys that change the configuration into a candidate."""
        per_node = self.fleet.hardware.devices_per_node
        return keys_text(_keys(self.config, per_node, candidate.layout, candidate.servers))


def best_of(
    config: RunConfig, shape: Shape, fleet: Fleet, lengths: Lengths, calibration: Calibration | None = None
) -> Best:
    """Search for the division with the shortest step whose devices have enough memory."""
    memory = fleet.hardware.memory_gib * GIB
    lacks = partial(_lacks, config, shape, memory, fleet.hardware.devices_per_node)
    room = partial(kv_tokens, config, shape, memory=memory)
    both = partial(_refused_together, config, shape, memory, fleet.hardware.devices_per_node)
    return Best(config, fleet, search(shape, fleet, lengths, config, lacks, room, both, calibration))


def _keys(config: RunConfig, per_node: int, layout: Layout, servers: Servers) -> dict[str, object]:
    return training_keys(layout, config, per_node) | server_keys(servers, config, layout, per_node)


def _lacks(config: RunConfig, shape: Shape, memory: float, per_node: int, layout: Layout) -> Lack | None:
    """The memory that a training layout lacks."""
    changed = with_values(config, {"rollout.engine": "sglang", **training_keys(layout, config, per_node)})
    uses = fit_of(changed, shape, memory).uses
    return next((_lacking(use) for use in uses if use.device.startswith("trainer") and not use.fits), None)


def _refused_together(
    config: RunConfig, shape: Shape, memory: float, per_node: int, layout: Layout, servers: Servers
) -> str | None:
    """Why trainer and servers are not possible together: they share memory, or `agentrl train` refuses the keys."""
    changed = with_values(config, _keys(config, per_node, layout, servers))
    lacking = (_lacking(use).text for use in fit_of(changed, shape, memory).uses if not use.fits)
    return next(lacking, None) or refused(changed)


def _lacking(use: Use) -> Lack:
    part, size = use.largest, use.parts[use.largest]
    text = f"{use.total / GIB:.0f} of {use.available / GIB:.0f} GiB, most of it {part}, {size / GIB:.0f} GiB"
    return Lack(use.total / max(1.0, use.available), text)


def best_lines(best: Best, step_s: float | None) -> Iterator[str]:
    """Yield the best division, its keys, and the others.

    Args:
        step_s: seconds of a step of the configuration; None: it does not fit.
    """
    ranked = best.found.ranked
    if not ranked:
        devices, lack = min(best.found.refused.items(), key=lambda item: item[1], default=(0, None))
        closest = f"closest: {devices} for training, {lack.text}" if lack else "no servers have room for the rollouts"
        yield f"no division of {best.fleet} fits; {closest}"
        return
    first = ranked[0]
    if step_s is not None and step_s <= first.step_s * NOTICEABLE:
        yield f"no division of {best.fleet} is faster than the configuration; tried:"
    else:
        faster = "" if step_s is None else f", {first.step_s / step_s - 1:+.0%}"
        yield f"best division of {best.fleet}: {_title(first)}: {_costs(first)}{faster}"
        yield f"  {best.keys(first)}"
    for each in ranked[1 : NUM_SHOWN + 1]:
        yield f"  {_title(each)}: {best.found.why_not(each)}"


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
    servers = f"{each.servers.replicas} x {each.servers.tensor}"
    return f"{each.layout.devices} train{_sizes(each.layout)}, {servers} sample{_where(each)}"


def _where(each: Candidate) -> str:
    return " on the same devices" if each.servers.colocate else ""


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
