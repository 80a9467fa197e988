"""The modes of `agentrl replay`: what each is for, what does it, and the word it takes."""

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
        target: `pkg.module:function`, a `replay.base.Mode`; loaded when the mode is asked for.
        word: what the word after it says; None where it takes none.
    """

    summary: str
    target: str
    word: Literal["OTHER", "TURN"] | None = None

    def load(self) -> Mode:
        """What does it."""
        mode: Mode = load_object(self.target)
        return mode


MODES = {
    "audit": Entry("check every number of the rollouts by code of its own", "agentrl.replay.auditing:audit"),
    "rescore": Entry("score them again: --reward file.py:function", "agentrl.replay.rescore:rescore"),
    "hacking": Entry("rollouts that guards suspect and the reward pays", "agentrl.replay.hacking:hacking"),
    "readvantage": Entry("credit them under another algorithm or reward", "agentrl.replay.readvantage:readvantage"),
    "logprobs": Entry("their tokens under another checkpoint: model.path=...", "agentrl.replay.logprobs:logprobs"),
    "tools": Entry("roll out again, tools answering from the recording", "agentrl.replay.rerun:tools"),
    "from-turn": Entry("go on from model turn TURN with a live policy", "agentrl.replay.from_turn:from_turn", "TURN"),
    "compare": Entry("hold against OTHER, a run or a checkpoint", "agentrl.replay.compare:compare", "OTHER"),
}


def find_mode(name: str) -> Entry:
    """The mode called so.

    Raises:
        UnknownNameError: there is none; names the nearest.
    """
    if name not in MODES:
        raise UnknownNameError(f"there is no mode '{name}' of replay: {suggestion(name, MODES)}")
    return MODES[name]
