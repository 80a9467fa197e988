"""The modes of `agentrl replay`: summary, function and argument of each."""

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
        summary: one line.
        target: `pkg.module:function`, a `replay.base.Mode`; imported only when the mode is used.
        word: the argument after the mode's name; None if it has no argument.
    """

    summary: str
    target: str
    word: Literal["OTHER", "TURN"] | None = None

    def load(self) -> Mode:
        """Import the mode's function."""
        mode: Mode = load_object(self.target)
        return mode


MODES = {
    "audit": Entry("check every number of the rollouts by code of its own", "agentrl.replay.audit_mode:audit"),
    "rescore": Entry("score them again: --reward file.py:function", "agentrl.replay.rescore.mode:rescore"),
    "hacking": Entry("rollouts that guards suspect and the reward pays", "agentrl.replay.guards_mode:hacking"),
    "readvantage": Entry(
        "credit them under another algorithm or reward", "agentrl.replay.readvantage.mode:readvantage"
    ),
    "logprobs": Entry("their tokens under another checkpoint: model.path=...", "agentrl.replay.logprobs.mode:logprobs"),
    "why": Entry("why rollouts were not trained on", "agentrl.replay.why_mode:why"),
    "tools": Entry("roll out again, tools answering from the recording", "agentrl.replay.rerun.tools_mode:tools"),
    "from-turn": Entry(
        "go on from model turn TURN with a live policy", "agentrl.replay.rerun.from_turn_mode:from_turn", "TURN"
    ),
    "compare": Entry("hold against OTHER, a run or a checkpoint", "agentrl.replay.compare.mode:compare", "OTHER"),
}


def find_mode(name: str) -> Entry:
    """Return the mode called `name`.

    Raises:
        UnknownNameError: no mode has this name; suggests the nearest one.
    """
    if name not in MODES:
        raise UnknownNameError(f"there is no mode '{name}' of replay: {suggestion(name, MODES)}")
    return MODES[name]
