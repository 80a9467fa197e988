"""Output of the predicted memory: a one-line verdict, a table, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from agentrl.plan.hardware import GIB
from agentrl.plan.memory.changes import Change
from agentrl.plan.memory.fit import Fit

_LEAST = 0.005
"""Parts below this many GiB are not shown."""


def memory_verdict(fit: Fit, changes: Sequence[Change] = ()) -> str:
    """Return the answer in one line."""
    if not fit.uses:
        return "memory: not predicted, because the plan does not know the devices of this run"
    use = fit.worst
    numbers = f"{use.device}, {use.phase}: {use.total / GIB:.1f} of {use.available / GIB:.1f} GiB"
    if fit.fits:
        return f"memory: fits; fullest: {numbers}"
    largest = f"most of it {use.largest}, {use.parts[use.largest] / GIB:.1f} GiB"
    change = f"; fits with {changes[0].shown}" if changes else ""
    return f"memory: does not fit; {numbers}, {largest}{change}"


def memory_table(fit: Fit, changes: Sequence[Change] = ()) -> Iterator[str]:
    """Yield the bytes of each part, and the keys with which the run fits."""
    for use in fit.uses:
        yield f"{f'{use.device}, {use.phase}':<34}{use.total / GIB:>10.2f} of {use.available / GIB:.2f} GiB"
        shown = {part: size / GIB for part, size in use.parts.items() if size / GIB >= _LEAST}
        yield from (f"  {part:<32}{size:>10.2f} GiB" for part, size in shown.items())
    if fit.at_once is not None and fit.at_once < fit.running:
        yield f"an engine has room for {fit.at_once} of its {fit.running} rollouts at a time; the others wait"
    if changes:
        yield "fits with one of:"
        yield from (f"  {change.shown}" for change in changes)


def memory_json(fit: Fit, changes: Sequence[Change] = ()) -> dict[str, JsonValue]:
    """Return all numbers, in bytes."""
    uses: list[JsonValue] = [
        {
            "device": use.device,
            "phase": use.phase,
            "total": use.total,
            "available": use.available,
            "parts": dict(use.parts),
        }
        for use in fit.uses
    ]
    return {
        "fits": fit.fits,
        "uses": uses,
        "rollouts_at_once": fit.at_once,
        "rollouts": fit.running,
        "changes": [change.text for change in changes],
    }
