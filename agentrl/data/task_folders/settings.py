"""The file `task.toml` of a task folder, version 1.4 of Harbor's format. Unknown keys are ignored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
)

ORGANISATION_AND_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*$"
IMAGE = r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$"
"""Pattern of image names: they cannot begin like a command-line option."""
Variables = dict[
    Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
    Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")],
]
NetworkMode = Literal["public", "no-network", "allowlist"]
User = str | Annotated[int, Field(strict=True)] | None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TaskPart(_Part):
    """Table `[task]`."""

    name: str = Field(pattern=ORGANISATION_AND_NAME)
    description: str = ""


class AgentPart(_Part):
    """Table `[agent]`."""

    timeout_sec: PositiveFloat | None = None
    user: User = None
    network_mode: NetworkMode | None = None


class VerifierPart(_Part):
    """Table `[verifier]`."""

    timeout_sec: PositiveFloat = 600.0
    env: Variables = {}
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, JsonValue] | None = None
    collect: list[JsonValue] = []
    network_mode: NetworkMode | None = None

    @property
    def is_separate(self) -> bool:
        """Whether the verifier has its own environment, which contains the tests."""
        return self.environment_mode == "separate" or self.environment is not None


class EnvironmentPart(_Part):
    """Table `[environment]`."""

    build_timeout_sec: PositiveFloat = 600.0
    docker_image: str | None = Field(default=None, pattern=IMAGE)
    os: Annotated[Literal["linux", "windows"], BeforeValidator(lambda v: v.lower() if isinstance(v, str) else v)] = (
        "linux"
    )
    cpus: PositiveInt | None = None
    memory_mb: PositiveInt | None = None
    storage_mb: PositiveInt | None = None
    gpus: int = Field(default=0, ge=0)
    env: Variables = {}
    workdir: str | None = Field(default=None, pattern=r"^/[^\x00]*$")
    healthcheck: dict[str, JsonValue] | None = None
    mcp_servers: list[JsonValue] = []
    network_mode: NetworkMode | None = None


class SolutionPart(_Part):
    """Table `[solution]`."""

    env: Variables = {}


class StepPart(_Part):
    """One entry of the array `[[steps]]`."""

    name: str
    agent: AgentPart = AgentPart()
    verifier: VerifierPart = VerifierPart()
    min_reward: float | dict[str, float] | None = None
    healthcheck: dict[str, JsonValue] | None = None


class TaskSettings(_Part):
    """All settings of the file. An empty file is valid."""

    schema_version: str = "1.4"
    task: TaskPart | None = None
    agent: AgentPart = AgentPart()
    verifier: VerifierPart = VerifierPart()
    environment: EnvironmentPart = EnvironmentPart()
    solution: SolutionPart = SolutionPart()
    steps: list[StepPart] | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
