"""Reward for code: runs the answer's program in a sandbox. The score is the share of tests that the program passes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import ConfigError, Kind, RewardError, with_place
from agentrl.rewards.builtin.code_cases import Case, code_of, read_cases
from agentrl.rewards.builtin.registry import NO_SANDBOX
from agentrl.sandboxes.base import SandboxEndedError, SandboxUnavailableError
from agentrl.sandboxes.loading import kind_of, pool_of
from agentrl.sandboxes.pool import OwnedSandbox, SandboxPool
from agentrl.sandboxes.programs import run_program
from agentrl.tools.base import InfraError
from agentrl.utils.yaml_list import entry_errors

SANDBOXES_PER_ANSWER = 4
"""Maximum number of sandboxes that test one answer at the same time; no limit for sandboxes that keep no state."""
_LANGUAGE = "reward.custom_reward_function.reward_kwargs"


class CodeReward:
    """Runs a fenced code block of the solution (see `code_of`) against every test of the row.

    The score is the share of tests passed. If `continuous` is false, the score is 1 if all tests pass, else 0.
    `passed_all` is 1 if all tests pass, else 0. An answer without a code block scores 0. A program does not pass a test
    if the program cannot be compiled, fails, hangs or prints wrong output.

    Args:
        max_cases: maximum number of tests; later tests are not used. None: all tests are used.
        language: name of the language in Sandbox Fusion; tests that are calls or assertions need python.
        timeout_s: timeout of one test in seconds; None: `reward.sandbox_fusion.timeout_s`.

    Raises:
        ConfigError: no sandbox is configured, or the sandbox does not support the language.
    """

    def __init__(
        self,
        config: RewardConfig,
        *,
        continuous: bool = True,
        max_cases: int | None = None,
        language: str = "python",
        timeout_s: float | None = None,
    ) -> None:
        key, setting = sandbox_of(config)
        if setting is None:
            raise ConfigError.at(
                key, Kind.MISSING, f"the reward 'code' runs programs that the model wrote: {NO_SANDBOX}"
            )
        self._key = key
        with entry_errors(key):
            self._kind, self._pool = kind_of(setting), _pool_of(setting)
        if language != "python" and self._kind.keeps_state:
            raise ConfigError.at(
                _LANGUAGE, Kind.NOT_SUPPORTED, f"{_LANGUAGE}.language={language} needs the sandbox sandbox_fusion"
            )
        self._continuous, self._max_cases, self._language = continuous, max_cases, language
        self._timeout_s = timeout_s or config.sandbox_fusion.timeout_s

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the row's tests cannot be used.
            InfraError: the sandbox failed for at least one test, so the share of passed tests is unknown.
            ConfigError: the sandbox cannot be used.
        """
        row = f"reward 'code' (data source '{data_source}', row {extra_info.get('index', 'unknown')})"
        try:
            cases = read_cases(ground_truth)[: self._max_cases]
            if (code := code_of(solution_str)) is None:
                return {"score": 0.0, "passed_all": 0.0}
            share = await self._share(code, cases)
        except SandboxUnavailableError as error:
            raise InfraError(f"{row}: {error}") from error
        except RewardError as error:
            raise with_place(error, row) from error
        except ConfigError as error:
            raise ConfigError.at(self._key, Kind.WRONG_VALUE, f"{self._key}: {error}") from error
        return {"score": share if self._continuous else float(share == 1), "passed_all": float(share == 1)}

    async def _share(self, code: str, cases: Sequence[Case]) -> float:
        first = await self._test(code, iter(cases[:1]))
        if first == [None]:  # the program does not compile, so it fails all tests
            return 0.0
        waiting = iter(cases[1:])
        at_once = SANDBOXES_PER_ANSWER if self._kind.keeps_state else len(cases)
        try:
            async with asyncio.TaskGroup() as together:
                workers = min(at_once, len(cases) - 1)
                others = [together.create_task(self._test(code, waiting)) for _ in range(workers)]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        results = chain(first, *(other.result() for other in others))
        return sum(each is True for each in results) / len(cases)

    async def _test(self, code: str, cases: Iterator[Case]) -> list[bool | None]:
        """Run tests in one sandbox until `cases`, which other calls may share, has no test left.

        Return for each of these tests whether the program passed; None if the program does not compile.
        """
        async with self._pool.borrowed() as sandbox:
            return [await self._passes(sandbox, code, case) for case in cases]

    async def _passes(self, owned: OwnedSandbox, code: str, case: Case) -> bool | None:
        mark = secrets.token_hex(16)
        program, stdin = case.program(code, mark)
        try:
            async with owned as sandbox:
                run = await run_program(sandbox, program, stdin, self._timeout_s, self._language)
        except SandboxEndedError:  # the program ended the sandbox; the next test gets another one
            return False
        return run.ok and case.passed(run.stdout, mark) if run.compiled else None


def _pool_of(setting: object) -> SandboxPool:
    if isinstance(setting, Mapping) and setting.get("prewarm"):
        raise ConfigError.keyless("'prewarm' has no effect: a reward closes its sandbox after each answer")
    return pool_of(setting)


def sandbox_of(config: RewardConfig) -> tuple[str, object]:
    """Return the key and the setting of the sandbox for code; the setting is None if no sandbox is configured."""
    fusion = config.sandbox_fusion
    if fusion.url is None:
        return "reward.sandbox", config.sandbox
    return "reward.sandbox_fusion.url", {
        "kind": "sandbox_fusion",
        "url": fusion.url,
        "max_concurrent": fusion.max_concurrent,
        "memory_mb": fusion.memory_limit_mb,
    }
