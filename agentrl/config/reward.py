"""`reward.*`: what a rollout is worth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal, Self

from pydantic import JsonValue, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from agentrl.config.base import Section
from agentrl.config.idle import given
from agentrl.config.learned_rewards import RewardModelConfig
from agentrl.config.reward_models import Components, GuardsConfig, JudgeConfig

NO_REWARD = "none"
"""What `reward.name` says where rollouts are generated without a score."""
MANAGERS = ("naive", "batch", "prime", "dapo", "rate_limited")
"""The reward managers that agentrl brings."""


class CustomRewardConfig(Section):
    """A reward function from the user's file."""

    path: Path | None = None
    """Python file that defines it."""
    name: str = "compute_score"
    """Its name in that file; async or not."""
    reward_kwargs: dict[str, JsonValue] = {}
    """Further keyword arguments for every call."""


class ManagerModuleConfig(Section):
    """Where the user's own reward manager is defined."""

    path: str | None = None
    """Python file or module that defines it."""


class RewardManagerConfig(Section):
    """How the reward function is called."""

    source: Literal["register", "importlib"] = "register"
    """register: one that agentrl brings. importlib: the user's own, from `module`."""
    name: str = "naive"
    """naive, batch, prime, dapo or rate_limited (docs/rewards.md); under importlib the name of a class."""
    module: ManagerModuleConfig = ManagerModuleConfig()
    """The user's own."""

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        if self.source == "importlib" and self.module.path is None:
            raise ValueError("source=importlib needs module.path, the file that defines the manager")
        if self.source == "register" and self.module.path is not None:
            raise ValueError("module.path has no effect without source=importlib")
        if self.source == "register" and self.name not in MANAGERS:
            raise ValueError(f"name must be {', '.join(MANAGERS)}, not '{self.name}'; source=importlib brings your own")
        return self


class OverlongBufferConfig(Section):
    """Soft overlong punishment (DAPO, arXiv:2503.14476): the last tokens before the limit cost more and more."""

    enable: bool = False
    """Take it from the score."""
    len: PositiveInt = 512
    """Tokens before data.max_response_length from which on it grows, from 0 to penalty_factor at the limit."""
    penalty_factor: NonNegativeFloat = 1.0
    """What a response of full length loses."""
    log: bool = False
    """Keep the penalty beside the score, as `overlong_reward` and `overlong`."""


class SandboxFusionConfig(Section):
    """A Sandbox Fusion server, which runs the code that the model wrote."""

    url: str | None = None
    """Its address, such as http://127.0.0.1:8080; with or without /run_code."""
    max_concurrent: PositiveInt = 64
    """Most programs it is asked to run at a time."""
    memory_limit_mb: PositiveInt = 1024
    """Most memory of a program."""
    timeout_s: PositiveFloat = 10.0
    """Seconds a program may take for one test, and seconds to compile it."""


class RewardConfig(Section):
    """What a rollout is worth."""

    name: str = "auto"
    """A built-in reward (docs/rewards.md), auto to choose by the row's data_source, or none to generate unscored."""
    custom_reward_function: CustomRewardConfig = CustomRewardConfig()
    """The user's own function; takes the place of `name`."""
    include_tool_text: bool = False
    """Let the reward's solution_str hold tool and user text too, not only what the model wrote."""
    success_threshold: float = 1.0
    """Scores from here on count as a success in metrics."""
    timeout_s: PositiveFloat = 60.0
    """Seconds one call may take."""
    range: tuple[float, float] | None = None
    """Lowest and highest score that the reward may give; another ends the run with the row. null: any finite one."""
    reward_manager: RewardManagerConfig = RewardManagerConfig()
    """How the function is called."""
    num_workers: PositiveInt = 8
    """prime: processes that score at a time; those in which the rewards for mathematics compare answers, too."""
    batch_size: PositiveInt = 64
    """batch: most rollouts a call."""
    batch_wait_s: NonNegativeFloat = 0.5
    """batch: seconds a rollout waits for others before a smaller batch is scored."""
    max_concurrent: PositiveInt | None = None
    """rate_limited: most calls at a time; null: no limit."""
    max_rpm: PositiveFloat | None = None
    """rate_limited: most calls a minute, evenly spaced; null: no limit."""
    max_tpm: PositiveFloat | None = None
    """rate_limited: most tokens a minute of the model behind the reward; null: no limit."""
    estimated_tokens_per_request: PositiveInt = 2000
    """rate_limited: tokens that a call is taken to need, for max_tpm."""
    overlong_buffer: OverlongBufferConfig = OverlongBufferConfig()
    """Soft overlong punishment, under any manager."""
    sandbox_fusion: SandboxFusionConfig = SandboxFusionConfig()
    """What runs code, for the rewards that test it."""
    components: Components = {}
    """Several rewards mixed into one, by name, in place of `name`; each one's own value stays beside the score."""
    judge: JudgeConfig = JudgeConfig()
    """The model that reward judge asks."""
    reward_model: RewardModelConfig = RewardModelConfig()
    """The model that reward reward_model scores with."""
    guards: GuardsConfig = GuardsConfig()
    """What watches for answers that please the reward and do not earn it."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range must be [lowest, highest], not {list(self.range)}")
        if problems := list(self._idle()):
            raise ValueError("; ".join(problems))
        return self

    def _idle(self) -> Iterator[str]:
        """Options that the chosen manager does not look at."""
        manager = self.reward_manager
        for name, options in _OF_MANAGER.items():
            if manager.source == "importlib" or manager.name != name:
                for option in filter(partial(given, self), options):
                    yield f"{option} has no effect without reward_manager.name={name}"


_OF_MANAGER = {
    "batch": ("batch_size", "batch_wait_s"),
    "rate_limited": ("max_concurrent", "max_rpm", "max_tpm", "estimated_tokens_per_request"),
}
