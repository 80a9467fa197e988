"""`reward.*`: how rollouts are scored."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import JsonValue, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from agentrl.config.base import Section
from agentrl.config.reward_model import RewardModelConfig
from agentrl.config.reward_sources import Components, GuardsConfig, JudgeConfig
from agentrl.config.rules.unused import given
from agentrl.config.uses import ADDRESS, code

NO_REWARD = "none"
"""Value of `reward.name` for generation without scores."""
MANAGERS = ("naive", "batch", "prime", "dapo", "rate_limited")
"""The built-in reward managers."""


class CustomRewardConfig(Section):
    """A reward function from your own file."""

    path: Annotated[Path, code()] | None = None
    """Python file that defines the reward function."""
    name: Annotated[str, code()] = "compute_score"
    """Name of the function in that file; it may be async."""
    reward_kwargs: Annotated[dict[str, JsonValue], code()] = {}
    """Further keyword arguments for every call."""


class ManagerModuleConfig(Section):
    """Location of your own reward manager."""

    path: Annotated[str, code()] | None = None
    """Python file or module that defines the reward manager."""


class RewardManagerConfig(Section):
    """How the reward function is called."""

    source: Annotated[Literal["register", "importlib"], code()] = "register"
    """register: a built-in reward manager. importlib: your own, from `module`."""
    name: Annotated[str, code("reward manager")] = "naive"
    """naive, batch, prime, dapo or rate_limited (docs/rewards.md); with importlib: the name of your class."""
    module: ManagerModuleConfig = ManagerModuleConfig()
    """Location of your own reward manager."""

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        if self.source == "importlib" and self.module.path is None:
            raise ValueError("source=importlib needs module.path, the file that defines the manager")
        if self.source == "register" and self.module.path is not None:
            raise ValueError("module.path has no effect without source=importlib")
        if self.source == "register" and self.name not in MANAGERS:
            raise ValueError(
                f"name must be {', '.join(MANAGERS)}, not '{self.name}'; use source=importlib for your own"
            )
        return self


class OverlongBufferConfig(Section):
    """Soft overlong punishment (DAPO, arXiv:2503.14476): a penalty that grows over the last tokens before the limit."""

    enable: bool = False
    """Subtract the penalty from the score."""
    len: PositiveInt = 512
    """Tokens before data.max_response_length over which the penalty grows linearly from 0 to penalty_factor."""
    penalty_factor: NonNegativeFloat = 1.0
    """Penalty of a response of maximum length."""
    log: bool = False
    """Save two more numbers with the score: `overlong_reward` (the penalty), and `overlong` (1 if there is a penalty,
    else 0)."""


class SandboxFusionConfig(Section):
    """A Sandbox Fusion server, which runs code written by the model."""

    url: Annotated[str, ADDRESS] | None = None
    """Address of the server, such as http://127.0.0.1:8080; with or without /run_code."""
    max_concurrent: PositiveInt = 64
    """Maximum number of programs that run at a time."""
    memory_limit_mb: PositiveInt = 1024
    """Memory limit of a program, in MB."""
    timeout_s: PositiveFloat = 10.0
    """Timeout in seconds of one test, and of compiling the program. The timeout applies to every kind of sandbox."""


class RewardConfig(Section):
    """How rollouts are scored."""

    name: Annotated[str, code("reward")] = "auto"
    """A built-in reward (docs/rewards.md); auto: chosen by the row's data_source; none: generate without scores."""
    custom_reward_function: CustomRewardConfig = CustomRewardConfig()
    """Your own reward function; replaces `name`."""
    include_tool_text: bool = False
    """Include tool and user text in the reward's solution_str, not only the text of the model."""
    success_threshold: float = 1.0
    """Scores of this value or more count as success in metrics."""
    timeout_s: PositiveFloat = 60.0
    """Timeout in seconds of one reward call."""
    range: tuple[float, float] | None = None
    """Lowest and highest valid score. If a score is outside this range, the run ends with an error that names the row.
    null: any finite score."""
    reward_manager: RewardManagerConfig = RewardManagerConfig()
    """How the reward function is called."""
    num_workers: PositiveInt = 8
    """prime: maximum number of processes that score in parallel. Rewards for mathematics use at most as many further
    processes, with any manager."""
    batch_size: PositiveInt = 64
    """batch: maximum number of rollouts per call."""
    batch_wait_s: NonNegativeFloat = 0.5
    """batch: seconds that a rollout waits for further rollouts before a smaller batch is scored."""
    max_concurrent: PositiveInt | None = None
    """rate_limited: maximum number of concurrent calls; null: no limit."""
    max_rpm: PositiveFloat | None = None
    """rate_limited: maximum number of calls per minute, evenly spaced; null: no limit."""
    max_tpm: PositiveFloat | None = None
    """rate_limited: maximum number of tokens that the calls use per minute; null: no limit."""
    estimated_tokens_per_request: PositiveInt = 2000
    """rate_limited: estimated tokens per call, for max_tpm."""
    overlong_buffer: OverlongBufferConfig = OverlongBufferConfig()
    """Soft overlong punishment, with any manager."""
    sandbox: Annotated[str | dict[str, JsonValue] | None, code()] = "local"
    """Sandbox in which rewards test code: the name of a kind, or a mapping with `kind` and the settings of that kind
    (docs/rewards.md). null: rewards run no code."""
    sandbox_fusion: SandboxFusionConfig = SandboxFusionConfig()
    """Server that runs the code instead of `sandbox`."""
    components: Components = {}
    """Mixture of several rewards, by name; replaces `name`. The value of each component is saved with the score."""
    judge: JudgeConfig = JudgeConfig()
    """The LLM judge of the reward `judge`."""
    reward_model: RewardModelConfig = RewardModelConfig()
    """The model of the reward `reward_model`."""
    guards: GuardsConfig = GuardsConfig()
    """Guards that flag likely reward hacking."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range must be [lowest, highest], not {list(self.range)}")
        if problems := list(self._idle()):
            raise ValueError("; ".join(problems))
        return self

    def _idle(self) -> Iterator[str]:
        """One message per given option that the chosen reward manager ignores."""
        manager = self.reward_manager
        for name, options in _OF_MANAGER.items():
            if manager.source == "importlib" or manager.name != name:
                for option in filter(partial(given, self), options):
                    yield f"{option} has no effect without reward_manager.name={name}"


_OF_MANAGER = {
    "batch": ("batch_size", "batch_wait_s"),
    "rate_limited": ("max_concurrent", "max_rpm", "max_tpm", "estimated_tokens_per_request"),
}
