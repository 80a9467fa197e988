"""`rollout.*`: the engine, sampling, the agent loop and its limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from agentrl.config.base import Section, one_or_many
from agentrl.config.model import Dtype


def _all_or_some(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("expected 1 or more, or -1 for all")
    return value


def _server_url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
        raise ValueError("expected an address such as 'http://node1:30000'")
    return value.rstrip("/")


def _each_once(urls: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(urls)) < len(urls):
        raise ValueError("a server may be named once")
    return urls


TopK = Annotated[int, AfterValidator(_all_or_some)]
Url = Annotated[str, AfterValidator(_server_url)]
Urls = Annotated[tuple[Url, ...], BeforeValidator(one_or_many), AfterValidator(_each_once)]


class AgentConfig(Section):
    """Which agent loop."""

    default_agent_loop: str = "single_turn_agent"
    """Agent loop of rows that name none: a registered name, `pkg.module:Class` or `path/to/file.py:Class`."""
    agent_loop_config_path: Path | None = None
    """YAML list of `{name, _target_, ...}`: further agent loops and their options."""


class MultiTurnConfig(Section):
    """Tools, the simulated user, and the limits of a conversation; each limit is a stop reason of its own."""

    format: str = "hermes"
    """How the model writes tool calls: hermes, react, sglang/NAME (SGLang's own parsers), or one registered by name."""
    tool_config_path: Path | None = None
    """YAML file of tools, in verl's format or the short form."""
    function_tool_path: Path | None = None
    """Python file whose `@tool` functions are offered."""
    interaction_config_path: Path | None = None
    """YAML file of simulated users."""
    max_assistant_turns: PositiveInt | None = None
    """Most turns of the model."""
    max_user_turns: NonNegativeInt | None = None
    """Most answers of the simulated user."""
    max_tool_calls: NonNegativeInt | None = None
    """Most tool calls in a rollout."""
    max_parallel_calls: PositiveInt = 1
    """Most tool calls in one turn; those beyond are answered with an error."""
    max_turn_tokens: PositiveInt | None = None
    """Most tokens the model may sample in one turn."""
    max_tool_response_length: PositiveInt = 256
    """Longest tool answer, in characters."""
    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """Which side of a longer tool answer is cut away."""
    tool_timeout_s: PositiveFloat = 60.0
    """Seconds a tool call may take."""
    rollout_timeout_s: PositiveFloat | None = None
    """Seconds a rollout may take."""


class ValKwargs(Section):
    """Sampling in validation."""

    n: PositiveInt = 1
    """Rollouts a task."""
    do_sample: bool = False
    """Sample; otherwise greedy."""
    temperature: NonNegativeFloat = 1.0
    """Temperature, when sampling."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus, when sampling."""
    top_k: TopK = -1
    """Most likely tokens to choose from, -1 for all, when sampling."""


class SglangConfig(Section):
    """SGLang servers: started here, or running ones by their addresses."""

    urls: Urls = ()
    """Servers that run already, such as http://node1:30000; none given: they are started here."""
    router_url: Url | None = None
    """An sglang-router in front of `urls`: it places generation, control calls go to the servers themselves."""
    num_replicas: PositiveInt = 1
    """Servers to start."""
    server_args: dict[str, JsonValue] = {}
    """Further options of `python -m sglang.launch_server`, as {mem_fraction_static: 0.8, tp_size: 2}."""
    env: dict[str, str] = {}
    """Environment variables of the servers that are started."""
    start_timeout_s: PositiveFloat = 600.0
    """Seconds a server may take until it serves; with `urls`, for how long a run waits when none of them answers."""
    health_timeout_s: PositiveFloat = 30.0
    """Seconds without an answer after which a server counts as hung."""
    max_restarts: NonNegativeInt = 3
    """How often a server that died or hung is started again; then the run ends."""
    max_connections: PositiveInt = 2048
    """Most requests to one server at a time; more wait here."""
    weight_transfer: Literal["auto", "disk", "tensor", "group"] = "auto"
    """How new weights reach the servers: files, requests that carry them, a process group (gloo, NCCL). auto: tensor
    to servers on this machine's CPU, group to GPUs."""
    weight_bucket_mb: PositiveInt = 512
    """Megabytes of weights sent at a time."""
    colocate: bool = False
    """Engine and trainer share a GPU: the engine's memory is released while the policy is updated."""
    probe_tokens: NonNegativeInt = 8
    """Tokens sampled after each update of the weights and scored by the backend; their difference is a metric."""


class RolloutConfig(Section):
    """The engine, sampling, the agent loop and its limits."""

    engine: Literal["torch", "sglang", "scripted"] = "torch"
    """What samples: the embedded torch engine, SGLang, or a script (tests and examples)."""
    n: PositiveInt = 1
    """Rollouts a task: the size of a group."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature in training and generation; 0 is greedy, which only generation can be."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; changes the behaviour distribution, so training refuses anything below 1."""
    top_k: TopK = -1
    """Top-k sampling; training refuses anything but -1."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Min-p sampling; training refuses anything above 0."""
    val_kwargs: ValKwargs = ValKwargs()
    """Sampling in validation."""
    agent: AgentConfig = AgentConfig()
    """Which agent loop."""
    multi_turn: MultiTurnConfig = MultiTurnConfig()
    """Tools and limits."""
    script_path: Path | None = None
    """What the scripted engine answers: a Python file's `reply` function as `path/to/file.py:reply`."""
    sglang: SglangConfig = SglangConfig()
    """SGLang servers, under engine=sglang."""
    weight_update_mode: Literal["drain", "retract", "in_place"] = "retract"
    """What becomes of rollouts under way when new weights come: drain lets each turn end first; under retract turns go
    on with the new weights, their KV computed anew; under in_place on the KV they have (SGLang; else as retract)."""
    routed_experts: bool = False
    """Keep which experts the engine's router chose, and train with them (R3: mixture-of-experts models on SGLang)."""
    device: str = "auto"
    """Device of the embedded engine: auto takes a CUDA GPU where there is one."""
    dtype: Dtype = "auto"
    """Number type of the embedded engine, or of SGLang servers started here; auto takes the model's."""
    max_num_seqs: PositiveInt = 128
    """Sequences the engine decodes at a time. SGLang chooses for itself unless this is given (max_running_requests)."""
    max_kv_tokens: PositiveInt | None = None
    """Tokens of KV the engine keeps (SGLang: max_total_tokens). None given: what max_num_seqs full sequences need in
    the embedded engine, what fits in SGLang."""
    deterministic: bool = False
    """The same tokens bit for bit, whatever runs beside them; somewhat slower. Embedded engine; SGLang on GPUs
    (enable_deterministic_inference), while on the CPU it cannot and environment.json says so."""
