"""Generative judge: a language model, reached through an endpoint, that scores answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from jsonschema import Draft202012Validator
from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.config.reward_sources import JudgeConfig
from agentrl.errors import RewardError, with_place
from agentrl.rewards.judge.cache import Verdict, VerdictCache, request_key
from agentrl.rewards.judge.client import JudgeClient, read_json
from agentrl.rewards.judge.prompt import JudgePrompt
from agentrl.tools.base import InfraError
from agentrl.utils.chat_endpoint import InvalidAnswerError


class Judge:
    """Asks a model for a verdict on each answer (Zheng et al. 2023, arXiv:2306.05685), as JSON that follows a schema.

    With score_range [0, 10] and reward_range [0, 1], the verdict {"score": 7} becomes

        {"score": 0.7, "verdict/score": 7.0}

    All other numbers of a verdict are also returned, under verdict/<property>.

    Raises:
        ConfigError: the endpoint, the template or the schema cannot be used.
    """

    def __init__(self, config: JudgeConfig, client: JudgeClient | None = None) -> None:
        self._config = config
        self._prompt = JudgePrompt(config)
        self._validator = Draft202012Validator(self._prompt.schema)
        self._client = client or JudgeClient(config)
        self._cache = VerdictCache(config.cache_dir, self._problem)

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            InfraError: the judge cannot be reached, or returns no valid verdict, so the answer has no score.
            RewardError: the template fails, or the endpoint has rejected every request so far.
        """
        try:
            body = self._prompt.body(data_source, solution_str, ground_truth, extra_info)
            return self._rewards(await self._verdict(body))
        except (InfraError, RewardError) as error:
            where = f"judge (data source '{data_source}', row {extra_info.get('index', 'unknown')})"
            raise with_place(error, where) from error

    async def _verdict(self, body: Mapping[str, JsonValue]) -> Verdict:
        key = request_key(self._client.url, body)
        async with self._cache.asking(key):
            if (known := self._cache.get(key)) is not None:
                return known
            verdict = await self._client.ask(body, self._read)
            self._cache.put(key, verdict)
        return verdict

    def _read(self, text: str) -> Verdict:
        verdict = read_json(text)
        if problem := self._problem(verdict):
            raise InvalidAnswerError(problem)
        assert isinstance(verdict, dict)  # checked by `_problem`
        return verdict

    def _problem(self, verdict: JsonValue) -> str | None:
        """Return in one line why a verdict is invalid; None if it is valid."""
        if not isinstance(verdict, dict):
            return f"expected a JSON object, got {verdict!r:.120}"
        try:
            if error := next(self._validator.iter_errors(verdict), None):
                return f"the verdict does not fit the schema: {error.message:.200}"
        except (ArithmeticError, RecursionError, ValueError) as error:  # extreme numbers, or deep nesting
            return f"the verdict cannot be checked against the schema: {type(error).__name__}: {error!s:.200}"
        low, high = self._config.score_range
        score = verdict.get(self._config.score_key)
        if not _is_number(score) or not low <= float(score) <= high:  # type: ignore[arg-type]  # a number
            return f"expected a {self._config.score_key} from {low:g} to {high:g}, got {score!r:.60}"
        return None

    def _rewards(self, verdict: Verdict) -> dict[str, float]:
        (low, high), (worst, best) = self._config.score_range, self._config.reward_range
        numbers = {f"verdict/{name}": float(value) for name, value in verdict.items() if _is_number(value)}  # type: ignore[arg-type]  # a number
        share = (numbers[f"verdict/{self._config.score_key}"] - low) / (high - low)
        return {"score": worst + share * (best - worst), **numbers}


def load_judge(config: RewardConfig) -> Judge:
    """Build the judge that `reward.judge` configures."""
    return Judge(config.judge)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
