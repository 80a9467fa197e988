"""The reward for code: the share of a row's tests that the program in the answer passes, in a sandbox."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence

import aiohttp
from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.rewards.builtin import NO_SANDBOX
from agentrl.rewards.code_cases import Case, code_of, read_cases
from agentrl.rewards.sandbox_fusion import SandboxFusion
from agentrl.tools.base import InfraError


class CodeReward:
    """Runs what the last fenced block of the solution holds against every test of the row.

    The score is the share of tests passed, and with `continuous` false 1 or 0; `passed_all` is 1 or 0. An answer
    without a block scores 0. A program that cannot be compiled, fails, hangs or prints something else does not pass.

    Args:
        max_cases: the first so many tests count; none given: all.
        language: as Sandbox Fusion calls it; tests by calls and assertions are for python.

    Raises:
        ConfigError: there is no sandbox.
    """

    def __init__(
        self, config: RewardConfig, *, continuous: bool = True, max_cases: int | None = None, language: str = "python"
    ) -> None:
        if config.sandbox_fusion.url is None:
            raise ConfigError(f"the reward 'code' runs what the model wrote: {NO_SANDBOX}")
        self._sandbox = SandboxFusion(config.sandbox_fusion)
        self._continuous, self._max_cases, self._language = continuous, max_cases, language

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the row's tests cannot be used.
            InfraError: the sandbox failed, for one test or more: how many would have passed is not known.
        """
        row = f"reward 'code' (data source '{data_source}', row {extra_info.get('index', 'unknown')})"
        try:
            cases = read_cases(ground_truth)[: self._max_cases]
            if (code := code_of(solution_str)) is None:
                return {"score": 0.0, "passed_all": 0.0}
            share = await self._share(code, cases)
        except (InfraError, RewardError) as error:
            raise type(error)(f"{row}: {error}") from error
        return {"score": share if self._continuous else float(share == 1), "passed_all": float(share == 1)}

    async def _share(self, code: str, cases: Sequence[Case]) -> float:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            compiled, passed = await self._try(session, code, cases[0])
            if not compiled:  # nor will it be for the others
                return 0.0
            try:
                async with asyncio.TaskGroup() as together:
                    others = [together.create_task(self._try(session, code, case)) for case in cases[1:]]
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
        return (passed + sum(other.result()[1] for other in others)) / len(cases)

    async def _try(self, session: aiohttp.ClientSession, code: str, case: Case) -> tuple[bool, bool]:
        """(it could be compiled, it passed)."""
        mark = secrets.token_hex(8)  # so that the model's code cannot print what only the test's end prints
        program, stdin = case.program(code, mark)
        run = await self._sandbox.run(session, program, stdin, self._language)
        return run.compiled, run.ok and case.passed(run.stdout, mark)
