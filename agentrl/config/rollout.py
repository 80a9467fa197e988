"""`rollout.*`: engine, sampling, agent loop and limits."""

from __future__ import annotations

import re
from collections.abc import Callable
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

from agentrl.capabilities import known_engine
from agentrl.config.base import Section, one_or_many
from agentrl.config.model import Dtype
from agentrl.config.uses import ADDRESS, PLAIN, SECRET, Text, code


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
        raise ValueError("a server is listed twice")
    return urls


COMPACTION, SUB_AGENT = "compaction", "sub_agent"
"""Names of agent loops whose options are sections of `rollout.multi_turn`."""


def _tool_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", value):
        raise ValueError("expected a name of letters, digits, '_' and '-', such as 'delegate'")
    return value


def _function_or(*names: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in names and ":" not in value:
            raise ValueError(f"expected {', '.join(names)}, or a function as 'path/to/file.py:name'")
        return value

    return check


CodeFile = Annotated[Path, code()]
TopK = Annotated[int, AfterValidator(_all_or_some)]
Url = Annotated[str, AfterValidator(_server_url), ADDRESS]
Urls = Annotated[tuple[Url, ...], BeforeValidator(one_or_many), AfterValidator(_each_once)]


HARNESS = "harness"
"""Name of the agent loop that runs `rollout.harness`."""


class AgentConfig(Section):
    """The agent loop."""

    default_agent_loop: Annotated[str, code("agent loop")] | None = None
    """Agent loop of rows without `agent_name`: a registered name, `pkg.module:Class` or `path/to/file.py:Class`. null:
    harness if `rollout.harness` is set; else tool_agent if tools or a simulated user are configured; else
    single_turn_agent."""
    agent_loop_config_path: CodeFile | None = None
    """YAML list of further agent loops and their options, as `{name, _target_, ...}`."""


class CompactionConfig(Section):
    """Agent loop `compaction`: a summary replaces a long conversation (docs/context.md)."""

    share: float = Field(default=0.7, gt=0, lt=1)
    """Fraction of `data.max_response_length` after which the model is asked for a summary."""
    max_compactions: PositiveInt = 4
    """Maximum number of summaries per rollout."""
    instruction: Text = (
        "The conversation is near its maximum length. Write a summary from which you can continue the task: what you"
        " were asked, what you did and found (exact values), and what remains. Only the task and this summary are"
        " kept. Do not call tools now."
    )
    """User message that asks for the summary."""


class SubAgentConfig(Section):
    """Agent loop `sub_agent`: a tool that is an agent (docs/context.md)."""

    name: Annotated[str, PLAIN, AfterValidator(_tool_name)] = "delegate"
    """Name of the tool."""
    description: Text = (
        "Give a task to an assistant and get its answer. The assistant knows only the text of the task: state"
        " everything that it needs."
    )
    """Description of the tool for the model."""
    tools: Annotated[tuple[Text, ...] | None, BeforeValidator(one_or_many)] = None
    """Names of the tools that sub-agents may call; null: all other tools of the rollout."""
    instructions: Text | None = None
    """System message of sub-agents; null: the system message of the task, if it has one."""
    depth: PositiveInt = 1
    """How deep sub-agents may be nested; 1: sub-agents cannot start sub-agents."""
    max_assistant_turns: PositiveInt | None = None
    """Maximum number of model turns of a sub-agent; null: `rollout.multi_turn.max_assistant_turns`."""
    max_turn_tokens: PositiveInt | None = None
    """Maximum number of tokens that a sub-agent samples per turn; null: `rollout.multi_turn.max_turn_tokens`."""


class MultiTurnConfig(Section):
    """Tools, simulated user and conversation limits. Each limit has its own stop reason."""

    format: Annotated[str, code("tool parser")] = "auto"
    """Format of tool calls: a built-in format such as hermes, sglang/NAME (a parser of SGLang), or a registered name.
    auto: the built-in format of the calls that the chat template writes."""
    tool_config_path: CodeFile | None = None
    """YAML file of tools, in verl's format or in agentrl's short form."""
    function_tool_path: CodeFile | None = None
    """Python file with `@tool` functions."""
    environment: Annotated[str, code()] | None = None
    """Class whose methods are tools, as `path/to/file.py:Class` or `pkg.module:Class` (docs/environments.md); each
    rollout has its own instance. Or a server of another project: `openenv:URL`, `nemo_gym:URL`, or a YAML file with the
    server's address and options (docs/other_environments.md)."""
    interaction_config_path: CodeFile | None = None
    """YAML file of simulated users."""
    max_assistant_turns: PositiveInt | None = None
    """Maximum number of model turns; null: no limit."""
    max_user_turns: NonNegativeInt | None = None
    """Maximum number of answers of the simulated user; null: no limit."""
    max_tool_calls: NonNegativeInt | None = None
    """Maximum number of tool calls per rollout; null: no limit."""
    max_parallel_calls: PositiveInt = 1
    """Maximum number of tool calls per turn; further calls get an error message."""
    max_turn_tokens: PositiveInt | None = None
    """Maximum number of tokens sampled per turn; null: no limit."""
    max_tool_response_length: PositiveInt = 256
    """Maximum length of a tool answer, in characters."""
    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """Side on which a tool answer longer than max_tool_response_length is cut."""
    thinking: Literal["keep", "strip"] = "keep"
    """Thoughts of earlier turns. keep: they stay in the context. strip: the context is what the chat template renders
    for the messages, so thoughts that the template drops are not in it (docs/thinking.md)."""
    tool_timeout_s: PositiveFloat = 60.0
    """Timeout of a tool call, in seconds."""
    rollout_timeout_s: PositiveFloat | None = None
    """Timeout of a rollout, in seconds; null: none."""
    compaction: CompactionConfig = CompactionConfig()
    """Summaries, with the agent loop `compaction`."""
    sub_agent: SubAgentConfig = SubAgentConfig()
    """Sub-agents, with the agent loop `sub_agent`."""


class ValKwargs(Section):
    """Sampling in validation."""

    n: PositiveInt = 1
    """Rollouts per task."""
    do_sample: bool = False
    """Sample; false: greedy."""
    temperature: NonNegativeFloat = 1.0
    """Temperature; only with do_sample."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; only with do_sample."""
    top_k: TopK = -1
    """Top-k sampling, -1 for all tokens; only with do_sample."""


def option_name(key: str) -> str:
    """Return the name of an option of a server in snake case: `tp_size` for `--tp-size`."""
    return key.lstrip("-").replace("-", "_")


class SglangConfig(Section):
    """SGLang servers: started by the run, or already running at given addresses."""

    urls: Urls = ()
    """Addresses of running servers, such as http://node1:30000; empty: the run starts servers."""
    router_url: Url | None = None
    """Address of an sglang-router in front of `urls`. Generation requests go to the router, all other
    requests to the servers."""
    api_key_env: Annotated[str, ADDRESS] | None = None
    """Environment variable that contains the API key of the servers in `urls`. Servers that the run starts get
    a new key."""
    num_replicas: PositiveInt = 1
    """Number of servers to start."""
    server_args: Annotated[dict[str, JsonValue], code()] = {}
    """Further options of `python -m sglang.launch_server`, such as {mem_fraction_static: 0.8, tp_size: 2}. With `urls`:
    the sizes of these servers (tp_size, pp_size, dp_size, enable_dp_attention), which the run checks."""
    env: Annotated[dict[str, str], SECRET] = {}
    """Environment variables of the started servers."""
    start_timeout_s: PositiveFloat = 600.0
    """Seconds to wait until a started server is ready; with `urls`: seconds to wait while no server answers."""
    health_timeout_s: PositiveFloat = 30.0
    """Seconds without an answer after which a server counts as hung."""
    max_restarts: NonNegativeInt = 3
    """Maximum number of restarts of a server that crashed or hung; after that the run ends."""
    max_connections: PositiveInt = 2048
    """Maximum number of concurrent requests to one server; further requests wait."""
    weight_transfer: Literal["auto", "disk", "tensor", "group"] = "auto"
    """How new weights are sent: disk (files), tensor (in requests), group (a gloo or NCCL process group). auto: disk
    if pp_size is above 1, or if dp_size is above 1 without enable_dp_attention; else tensor on CPUs, group on GPUs."""
    weight_bucket_mb: PositiveInt = 512
    """Megabytes of weights sent at a time."""
    colocate: bool = False
    """Engine and trainer share a GPU: the engine releases its GPU memory during policy updates."""
    probe_tokens: NonNegativeInt = 8
    """Number of tokens that the engine samples after each weight update as a test. The backend computes the
    log-probabilities of the same tokens; their difference from the engine's log-probabilities is a metric."""

    @property
    def options(self) -> dict[str, JsonValue]:
        """`server_args` with names in snake case: `--tp-size` is `tp_size`."""
        return {option_name(key): value for key, value in self.server_args.items()}


TRAIN_RULES, CREDIT_RULES = ("all", "main", "continued"), ("shared", "per_trajectory")


class GatewayConfig(Section):
    """Which tokens are trained in rollouts that sample through the gateway (docs/gateway.md)."""

    train: Annotated[str, AfterValidator(_function_or(*TRAIN_RULES)), code("gateway rule")] = "continued"
    """Trajectories that are trained. all: every trajectory. main: the conversations with the tools and system texts
    that occur in the most turns of the rollout, except discarded answers. continued: all except discarded
    answers and side requests (for example, for a title). A side request is a conversation with one turn, without tools
    and not in `main`, in a rollout in which other requests offered tools. Or a function, as `path/to/file.py:name`."""
    credit: Annotated[str, AfterValidator(_function_or(*CREDIT_RULES)), code("gateway rule")] = "shared"
    """Advantage of the tokens of a trained trajectory. shared: the rollout's advantage. per_trajectory: the rollout's
    advantage divided by the number of its trained trajectories. Or a function whose results multiply
    the rollout's advantage, as `path/to/file.py:name`."""


class RolloutConfig(Section):
    """Engine, sampling, agent loop and limits."""

    engine: Annotated[str, AfterValidator(known_engine), code()] = "torch"
    """Engine that samples: torch (embedded), sglang, scripted (tests and examples), or your own as
    `path/to/file.py:NAME` (docs/extending.md)."""
    n: PositiveInt | None = None
    """Rollouts per task: the group size. null: 8 if the algorithm compares rollouts of a task or selects the best,
    else 1."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature in training and generation; 0 (greedy) only in generation."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling. It changes the sampled distribution, so training refuses values below 1, except with rft."""
    top_k: TopK = -1
    """Top-k sampling; training refuses values other than -1, except with rft."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Min-p sampling; training refuses values above 0, except with rft."""
    val_kwargs: ValKwargs = ValKwargs()
    """Sampling in validation."""
    agent: AgentConfig = AgentConfig()
    """Agent loop."""
    multi_turn: MultiTurnConfig = MultiTurnConfig()
    """Tools, simulated user and limits."""
    harness: Annotated[str, code()] | None = None
    """Program that runs the rollouts, for the agent loop `harness`: a name of `configs/harness`, such as codex, or a
    YAML file (docs/harnesses.md)."""
    gateway: GatewayConfig = GatewayConfig()
    """Rollouts that sample through the gateway."""
    script_path: CodeFile | None = None
    """Function that produces the answers of the scripted engine, as `path/to/file.py:reply`."""
    sglang: SglangConfig = SglangConfig()
    """SGLang servers, with engine=sglang."""
    weight_update_mode: Literal["drain", "retract", "in_place"] = "retract"
    """Treatment of running turns at a weight update. drain: wait until they end. retract: continue with new weights and
    recompute the KV cache. in_place: continue with new weights and the old KV cache (SGLang; other engines retract)."""
    weight_sync: Literal["full", "delta"] = "full"
    """Weights sent to SGLang servers. full: all trained weights. delta: only the values that changed, for servers in a
    slow network; the servers keep the last weights in host memory."""
    routed_experts: bool = False
    """Record the experts chosen by the engine's router, and train with the same experts (R3). For mixture-of-experts
    models on SGLang."""
    device: Text = "auto"
    """Device of the embedded engine; auto: a CUDA GPU if available."""
    dtype: Dtype = "auto"
    """Data type of the embedded engine, or of started SGLang servers; auto: that of the model."""
    max_num_seqs: PositiveInt | None = None
    """Maximum number of sequences decoded at a time (SGLang: max_running_requests). null: 128 in the embedded engine;
    SGLang uses its own limit."""
    max_kv_tokens: PositiveInt | None = None
    """KV cache size in tokens (SGLang: max_total_tokens). null: enough for max_num_seqs sequences of full length in the
    embedded engine; SGLang on GPUs chooses the size itself; SGLang servers that the run starts on a CPU get 32768, or
    one sequence of full length if it is longer."""
    deterministic: bool = False
    """Make sampled tokens independent of other requests; somewhat slower. Works with the embedded engine and with
    SGLang on GPUs (enable_deterministic_inference), not with SGLang on the CPU. For a run with SGLang, environment.json
    never promises reproducibility."""

    @property
    def agent_loop(self) -> str:
        """The default agent loop: `agent.default_agent_loop`, else the loop that fits the harness or the tools."""
        if self.harness is not None and self.agent.default_agent_loop is None:
            return HARNESS
        turns = self.multi_turn
        tools = (turns.tool_config_path, turns.function_tool_path, turns.environment)
        acts = any(each is not None for each in (*tools, turns.interaction_config_path))
        return self.agent.default_agent_loop or ("tool_agent" if acts else "single_turn_agent")
