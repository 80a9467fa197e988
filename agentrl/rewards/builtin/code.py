"""Reward for code: the share of a row's tests that the program in the answer passes, run in a sandbox."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence

from aiohttp import ClientSession
from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import ConfigError, Kind, RewardError, with_place
from agentrl.rewards.builtin.code_cases import Case, code_of, read_cases
from agentrl.rewards.builtin.registry import NO_SANDBOX
from agentrl.rewards.builtin.sandbox_fusion import SandboxFusion
from agentrl.tools.base import InfraError
from agentrl.utils.http_client import open_session


class CodeReward:
    """Runs the last fenced code block of the solution against every test of the row.

    The score is the share of tests passed. If `continuous` is false, the score is 1 if all tests pass, else 0.
    `passed_all` is 1 or 0. An answer without a code block scores 0. A program does not pass a test if it cannot be
    compiled, fails, hangs or prints wrong output.

    Args:
        max_cases: maximum number of tests; later tests are not used. None: all tests are used.
        language: name of the language in Sandbox Fusion; tests that are calls or assertions need python.

    Raises:
        ConfigError: no sandbox is configured.
    """

    def __init__(
        self, config: RewardConfig, *, continuous: bool = True, max_cases: int | None = None, language: str = "python"
    ) -> None:
        if config.sandbox_fusion.url is None:
            raise ConfigError.at(
                "reward.sandbox_fusion.url",
                Kind.MISSING,
                f"the reward 'code' runs programs that the model wrote: {NO_SANDBOX}",
            )
        self._sandbox = SandboxFusion(config.sandbox_fusion)
        self._continuous, self._max_cases, self._language = continuous, max_cases, language

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the row's tests cannot be used.
            InfraError: the sandbox failed for at least one test, so the share of passed tests is unknown.
        """
        row = f"reward 'code' (data source '{data_source}', row {extra_info.get('index', 'unknown')})"
        try:
            cases = read_cases(ground_truth)[: self._max_cases]
            if (code := code_of(solution_str)) is None:
                return {"score": 0.0, "passed_all": 0.0}
            share = await self._share(code, cases)
        except (InfraError, RewardError) as error:
            raise with_place(error, row) from error
        return {"score": share if self._continuous else float(share == 1), "passed_all": float(share == 1)}

    async def _share(self, code: str, cases: Sequence[Case]) -> float:
        async with open_session() as session:
            compiled, passed = await self._try(session, code, cases[0])
            if not compiled:  # the other tests would not compile either
                return 0.0
            try:
                async with asyncio.TaskGroup() as together:
                    others = [together.create_task(self._try(session, code, case)) for case in cases[1:]]
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
        return (passed + sum(other.result()[1] for other in others)) / len(cases)

    async def _try(self, session: ClientSession, code: str, case: Case) -> tuple[bool, bool]:
        """Return (whether the program compiled, whether it passed)."""
        mark = secrets.token_hex(16)
        program, stdin = case.program(code, mark)
        run = await self._sandbox.run(session, program, stdin, self._language)
        return run.compiled, run.ok and case.passed(run.stdout, mark)
