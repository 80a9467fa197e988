"""Replaces null values by values that the run chooses, and gives the reason for each choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from agentrl.config.base import Section
from agentrl.config.rules.model_layout import ModelShape
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind

Purpose = Literal["train", "rollout", "eval"]
S = TypeVar("S", bound=Section)

OPEN: Mapping[str, str | None] = {
    "rollout.n": None,
    "rollout.agent.default_agent_loop": None,
    "actor.optim.lr": None,
    "rollout.multi_turn.format": "auto",
}
"""Key -> the value that leaves the choice to the run."""
REFERENCE_SIZE = 500_000_000
"""Models with at least this many parameters get the usual learning rate; smaller models get a proportionally
larger one."""
LORA_FACTOR = 10
"""LoRA needs about ten times the learning rate of full fine-tuning (https://thinkingmachines.ai/blog/lora)."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts from a model's `config.json`.

    Attributes:
        num_parameters: number of parameters, estimated from the sizes in the file; None if the file lacks these sizes.
        context: maximum sequence length in tokens (`max_position_embeddings`); None if unknown.
        shape: sizes and features that a parallel layout must fit; None if the file lacks the sizes.
    """

    num_parameters: int | None = None
    context: int | None = None
    shape: ModelShape | None = None


class Choice(NamedTuple):
    """A chosen value and its reason."""

    key: str
    value: object
    reason: str


class _Rate(NamedTuple):
    usual: float
    largest: float
    what: str


_RATES = {
    "policy": _Rate(1e-6, 5e-4, "RL"),  # the default of verl, TRL (GRPO) and prime-rl
    "preference": _Rate(1e-6, 1e-4, "preference learning"),  # TRL's DPO
    "imitation": _Rate(2e-5, 1e-3, "supervised fine-tuning"),  # TRL's SFT
    "reward": _Rate(1e-5, 1e-3, "reward model training"),
}


def resolve(config: RunConfig, model: ModelFacts, purpose: Purpose = "train") -> tuple[RunConfig, list[Choice]]:
    """Return the configuration with all chosen values, and the list of choices.

    A resolved configuration reproduces the run even if defaults change later.

    Args:
        model: facts about `model.path`.
        purpose: the command that uses the configuration. Keys that this command does not need stay null.

    Raises:
        ConfigError: the given lengths do not fit the model's context.
    """
    choices = [*_lengths(config, model)]
    if config.rollout.agent.default_agent_loop is None:
        loop = config.rollout.agent_loop
        reason = "tools or a simulated user are configured" if loop == "tool_agent" else "no tools are configured"
        choices.append(Choice("rollout.agent.default_agent_loop", loop, reason))
    if purpose != "eval" and config.algorithm.live and config.rollout.n is None:
        choices.append(_group_size(config))
    if purpose == "train" and config.actor.optim.lr is None:
        choices.append(_learning_rate(config, model.num_parameters))
    return with_values(config, {choice.key: choice.value for choice in choices}), choices


def notices(config: RunConfig) -> list[str]:
    """Return a line if `rollout.n` is ignored. This is no error: one experiment file may serve several algorithms."""
    if config.algorithm.live or config.rollout.n in (None, 1):
        return []
    return [
        f"rollout.n={config.rollout.n} is ignored: {config.algorithm.name} trains on data rows and samples no rollouts"
    ]


def table(choices: Iterable[Choice]) -> str:
    """Return one line per choice: key, value, reason."""
    return "\n".join(f"  {f'{key}={_shown(value)}':<46} {reason}" for key, value, reason in choices)


def _group_size(config: RunConfig) -> Choice:
    preset = config.algorithm.preset
    reasons = {"preference": "compares rollouts of a task", "imitation": "keeps the best rollouts of a task"}
    compares = reasons.get(preset.family, "compares the rollouts of a task")
    reason = compares if config.group_size > 1 else "needs no group of rollouts"
    return Choice("rollout.n", config.group_size, f"{config.algorithm.name} {reason}")


def _learning_rate(config: RunConfig, num_parameters: int | None) -> Choice:
    """Choose a usual learning rate for the kind of algorithm. The rate is larger for LoRA and for small models."""
    rate = _RATES[config.algorithm.preset.family]
    lora = bool(config.model.lora_rank or config.model.lora_adapter_path)
    scale = max(1.0, REFERENCE_SIZE / num_parameters) if num_parameters else 1.0
    value = min(rate.usual * scale * (LORA_FACTOR if lora else 1), rate.largest)
    how = f"{rate.what} with LoRA" if lora else f"{rate.what}, all weights"
    size = f"{_count(num_parameters)} parameters" if num_parameters else "a model of unknown size"
    return Choice("actor.optim.lr", float(f"{value:.1e}"), f"usual for {how}, {size}")


def _lengths(config: RunConfig, model: ModelFacts) -> list[Choice]:
    """Reduce prompt and response length to the model's context. Lengths set by the user are not changed.

    Raises:
        ConfigError: the given lengths do not fit.
    """
    data, context = config.data, model.context
    prompt, response = data.max_prompt_length, data.max_response_length
    if context is None or prompt + response <= context:
        return []
    given = data.model_fields_set & {"max_prompt_length", "max_response_length"}
    if not given:
        prompt = min(prompt, context // 2)
    if "max_response_length" not in given:
        response = context - prompt
    elif "max_prompt_length" not in given:
        prompt = context - response
    if min(prompt, response) < 1 or prompt + response > context:
        if not config.algorithm.live:
            return []  # no error: samples from files are allowed to be longer than the context
        raise ConfigError.at(
            "data.max_response_length",
            Kind.CONFLICT,
            f"the model's context ({context} tokens) is shorter than data.max_prompt_length +"
            f" data.max_response_length, {data.max_prompt_length} + {data.max_response_length}",
        )
    reason = f"limited to the model's context of {context} tokens"
    new = {"data.max_prompt_length": prompt, "data.max_response_length": response}
    return [Choice(key, value, reason) for key, value in new.items() if key.removeprefix("data.") not in given]


def with_values(config: RunConfig, values: Mapping[str, object]) -> RunConfig:
    """Return the configuration with `values` (dotted key -> new value)."""
    for key, value in values.items():
        config = _set(config, key.split("."), value)
    return config


def _set(section: S, path: list[str], value: object) -> S:
    name, *rest = path
    inner = _set(getattr(section, name), rest, value) if rest else value
    return section.model_copy(update={name: inner})


def _count(number: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.2g}{unit}" if number < 10 * size else f"{number / size:.0f}{unit}"
    return str(number)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
