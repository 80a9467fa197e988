"""Rewards for mathematics. Comparisons that need algebra run in child processes, which can be killed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from agentrl.concurrency import OverdueError
from agentrl.config.reward import RewardConfig
from agentrl.errors import RewardError
from agentrl.rewards.builtin.math_answers import plainly_same, truths_of
from agentrl.rewards.functions.processes import ScorePool
from agentrl.tools.base import InfraError
from agentrl.utils.answers import answer_line, boxed

_LOGGER = logging.getLogger(__name__)
_ALGEBRA = "agentrl.rewards.builtin.math_answers:same_by_algebra"
_ALGEBRA_TIMEOUT_S = 30.0
"""Timeout of one comparison, after which the process is killed. math-verify's own timeouts (5 s per step) do not fire
while native code blocks the interpreter."""


class _MathReward:
    """Base of the math rewards: comparison and error handling."""

    def __init__(self, config: RewardConfig) -> None:
        self._pool = ScorePool(config.num_workers)

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the row has no ground truth.
        """
        row = f"row {extra_info.get('index', 'unknown')} of '{data_source}'"
        try:
            return await self._score(solution_str, truths_of(ground_truth), row)
        except RewardError as error:
            raise RewardError(f"{row}: {error}") from error

    async def _score(self, solution: str, truths: Iterable[str], row: str) -> dict[str, float]:
        raise NotImplementedError

    async def _same(self, answer: str, truths: Iterable[str], row: str) -> bool:
        """Whether the answer equals one of `truths`. An answer that cannot be compared counts as wrong."""
        verdicts = {truth: plainly_same(answer, truth) for truth in truths}
        if True in verdicts.values():
            return True
        for truth in (truth for truth, verdict in verdicts.items() if verdict is None):
            try:
                question = {"answer": answer, "truth": truth}
                numbers, _ = await self._pool.score(_ALGEBRA, question, _ALGEBRA_TIMEOUT_S)
            except (OverdueError, InfraError, RewardError) as error:
                _LOGGER.warning("%s: the answer %.100r cannot be compared and counts as wrong: %r", row, answer, error)
            else:
                if numbers["score"]:
                    return True
        return False

    def close(self) -> None:
        """Stop the child processes."""
        self._pool.close()


class MathReward(_MathReward):
    r"""`score` if the last `\boxed{}` equals the ground truth, `format_score` if it does not, 0 without a box.

    Equality is mathematical: 1/2 equals 0.5, x^2+2x+1 equals (x+1)^2, and sets may be in any order. math-verify decides
    all cases except simple ones. Use this reward for data such as MATH (Hendrycks et al. 2021, arXiv:2103.03874).
    """

    def __init__(self, config: RewardConfig, *, score: float = 1.0, format_score: float = 0.0) -> None:
        super().__init__(config)
        self._right, self._format = score, format_score

    async def _score(self, solution: str, truths: Iterable[str], row: str) -> dict[str, float]:
        if (answer := boxed(solution)) is None:
            return {"score": 0.0}
        return {"score": self._right if await self._same(answer, truths, row) else self._format}


class DapoMathReward(_MathReward):
    r"""`score` (default 1) if the answer equals the ground truth, else `wrong` (default -1); `acc` is 1 or 0.

    The answer follows the last `Answer:`, as DAPO's prompts ask for. Without `Answer:`, the content of the last
    `\boxed{}` is the answer. The defaults are those of DAPO (Yu et al. 2025, arXiv:2503.14476, equation 7).
    """

    def __init__(self, config: RewardConfig, *, score: float = 1.0, wrong: float = -1.0) -> None:
        super().__init__(config)
        self._right, self._wrong = score, wrong

    async def _score(self, solution: str, truths: Iterable[str], row: str) -> dict[str, float]:
        line = answer_line(solution)
        held = boxed(solution if line is None else line)
        answer = held if held is not None else line
        right = answer is not None and await self._same(answer, truths, row)
        return {"score": self._right if right else self._wrong, "acc": float(right)}


class GeometryReward(_MathReward):
    r"""(1 - format_score) * acc + format_score * format, as in verl's reward for Geometry3K.

    `acc` is 1 if the last `\boxed{}` equals the ground truth. `format` is 1 if the solution is a thought in `<think>`
    tags followed by a box.
    """

    def __init__(self, config: RewardConfig, *, format_score: float = 0.1) -> None:
        super().__init__(config)
        self._format = format_score

    async def _score(self, solution: str, truths: Iterable[str], row: str) -> dict[str, float]:
        answer = boxed(solution)
        right = float(answer is not None and await self._same(answer, truths, row))
        formatted = float(_is_thought_and_box(solution))
        score = (1 - self._format) * right + self._format * formatted
        return {"score": score, "acc": right, "format": formatted}


def _is_thought_and_box(text: str) -> bool:
    """Whether the text begins with a thought in tags, followed by a closed box."""
    _, ended, rest = text.partition("</think>")
    _, opened, rest = rest.partition("\\boxed{")
    return text.startswith("<think>") and bool(ended) and bool(opened) and "}" in rest
