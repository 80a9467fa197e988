"""The modes of `agentrl replay`, each with its summary, function and argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentrl.errors import UnknownNameError, suggestion
from agentrl.registry import load_object
from agentrl.replay.base import Mode


@dataclass(frozen=True, slots=True)
class Entry:
    """One mode.

    Attributes:
        summary: what the mode does, in one line.
        target: `pkg.module:function`, a `replay.base.Mode`; imported only when the mode is used.
        argument: the argument after the mode's name; None if it has no argument.
    """

    summary: str
    target: str
    argument: Literal["OTHER", "TURN"] | None = None

    def load(self) -> Mode:
        """Import the mode's function."""
        mode: Mode = load_object(self.target)
        return mode


MODES = {
    "audit": Entry("recompute all saved values with independent code", "agentrl.replay.audit_mode:audit"),
    "rescore": Entry(
        "score the rollouts with another reward: --reward file.py:function", "agentrl.replay.rescore.mode:rescore"
    ),
    "hacking": Entry("list rewarded rollouts that raised a guard", "agentrl.replay.guards_mode:hacking"),
    "readvantage": Entry(
        "recompute the advantages with another algorithm or reward", "agentrl.replay.readvantage.mode:readvantage"
    ),
    "logprobs": Entry(
        "compute log-probabilities under another checkpoint: model.path=...", "agentrl.replay.logprobs.mode:logprobs"
    ),
    "why": Entry("show why rollouts were not trained on", "agentrl.replay.why_mode:why"),
    "tools": Entry("re-run the rollouts with recorded tool results", "agentrl.replay.rerun.tools_mode:tools"),
    "from-turn": Entry(
        "keep everything before model turn TURN, sample the rest again",
        "agentrl.replay.rerun.from_turn_mode:from_turn",
        "TURN",
    ),
    "compare": Entry("compare with OTHER, a run or a checkpoint", "agentrl.replay.compare.mode:compare", "OTHER"),
}


def find_mode(name: str) -> Entry:
    """Return the mode called `name`.

    Raises:
        UnknownNameError: no mode has this name; the message suggests the nearest name.
    """
    if name not in MODES:
        raise UnknownNameError(f"unknown replay mode '{name}': {suggestion(name, MODES)}")
    return MODES[name]
