"""`reward.judge`, `reward.components`, `reward.guards`: LLM judge, reward mixtures and guards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from agentrl.config.base import Section, chat_url, one_or_many
from agentrl.config.uses import ADDRESS, PLACE, File, Text, code
from agentrl.errors import suggestion

GuardName = Literal["repetition", "length", "format_only", "grader_injection", "answer_spam"]
GUARDS: tuple[GuardName, ...] = ("repetition", "length", "format_only", "grader_injection", "answer_spam")
TAKEN = frozenset({"score", "mean", "std", "baseline", "guards_penalty"})
"""Names that a component must not have, because they already have a meaning in a rollout or in its metrics."""

Range = tuple[float, float]


class JudgeConfig(Section):
    """An LLM judge behind an OpenAI-compatible chat completions endpoint."""

    url: Annotated[str, ADDRESS] | None = None
    """Endpoint without /chat/completions, such as http://localhost:8000/v1."""
    model: Text | None = None
    """Model name of the judge at the endpoint."""
    prompt: Annotated[str, code()] | None = None
    """Jinja template, or the path of one, with the variables {{ question }}, {{ answer }}, {{ last_turn }},
    {{ tool_text }}, {{ ground_truth }}, {{ data_source }}, {{ low }}, {{ high }}. null: a built-in prompt that asks for
    correctness."""
    answer_schema: Annotated[dict[str, JsonValue] | Path, PLACE] | None = None
    """JSON schema of the judge's answer, or a JSON file that contains it. null: a reason and a score."""
    score_key: Text = "score"
    """Property of the judge's answer that is the score."""
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    """How the schema is sent to the endpoint; use json_object or none if the endpoint does not support json_schema."""
    score_range: Range = (0.0, 10.0)
    """Valid range of the judge's score; an answer with a score outside is invalid."""
    reward_range: Range = (0.0, 1.0)
    """Rewards for the lowest and the highest score of score_range; linear in between."""
    temperature: NonNegativeFloat | None = 0.0
    """Sampling temperature of the judge; null: default of the endpoint."""
    max_tokens: PositiveInt | None = 1024
    """Maximum tokens of the judge's answer; null: default of the endpoint."""
    max_concurrent: PositiveInt = 32
    """Maximum number of concurrent requests."""
    timeout_s: PositiveFloat = 60.0
    """Timeout in seconds of one request."""
    max_retries: NonNegativeInt = 4
    """Retries after a failure (429, 5xx, timeout, no connection, no valid answer), with growing delays."""
    cache_dir: File | None = None
    """Folder that caches the judge's answers across runs and processes; null: cached in memory only."""
    api_key_env: Annotated[str, ADDRESS] | None = None
    """Environment variable that contains the API key of the endpoint; the key itself is never saved."""

    @field_validator("url")
    @classmethod
    def _is_endpoint(cls, url: str | None) -> str | None:
        return url and chat_url(url)

    @field_validator("score_range", "reward_range")
    @classmethod
    def _is_range(cls, bounds: Range) -> Range:
        if not bounds[0] < bounds[1]:
            raise ValueError("expected two numbers, the lower first")
        return bounds


class ComponentConfig(Section):
    """One reward of a mixture."""

    reward: str
    """A built-in reward, auto, path/to/file.py:function, judge or reward_model."""
    weight: float = 1.0
    """Weight of the component in the score; 0: only recorded, or used as a gate."""
    gate: str | None = None
    """Another component that must reach gate_threshold; otherwise this component is not computed and adds 0."""
    gate_threshold: float = 1.0
    """Minimum value of the gate component."""
    priority: int | None = None
    """Components with a priority are alternatives, computed in this order (1 before 2). The first component whose
    value reaches its verdict_from gives the verdict. Only the verdict counts."""
    verdict_from: float | None = None
    """Minimum value with which this component gives the verdict. If its value is lower, the component with the next
    priority is computed."""
    reward_kwargs: dict[str, JsonValue] = {}
    """Further keyword arguments of the function. For judge and reward_model: keys of reward.judge or
    reward.reward_model, with their values for this component."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: object) -> object:
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:  # validation suggests no nearest key inside a mapping of sections
                raise ValueError(f"unknown key '{key}': {suggestion(str(key), cls.model_fields)}")
        return values

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.gate is None and "gate_threshold" in self.model_fields_set:
            raise ValueError("gate_threshold has no effect without gate")
        if self.priority is None and self.verdict_from is not None:
            raise ValueError("verdict_from has no effect without priority")
        return self


def by_priority(components: Mapping[str, ComponentConfig]) -> list[str]:
    """Return the names of the components that have a priority, in order of priority (1 before 2)."""
    ranked = sorted((each.priority, name) for name, each in components.items() if each.priority is not None)
    return [name for _, name in ranked]


def asked_order(components: Mapping[str, ComponentConfig]) -> list[str]:
    """Order the components: each after its gate and after the components with a smaller priority number.

    Raises:
        ValueError: components depend on each other in a cycle.
    """
    waits: dict[str, list[str]] = {name: [each.gate] if each.gate else [] for name, each in components.items()}
    for better, worse in pairwise(by_priority(components)):
        waits[worse].append(better)
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        raise ValueError(f"components depend on each other in a cycle: {' -> '.join(error.args[1])}") from None


def _check_components(components: dict[str, ComponentConfig]) -> dict[str, ComponentConfig]:
    for name, component in components.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in TAKEN:
            raise ValueError(f"'{name}' is not a valid component name: use letters, digits and _, but not {_listed()}")
        if component.gate is not None and component.gate not in components:
            near = suggestion(component.gate, components.keys() - {name})
            raise ValueError(f"{name}: gate: unknown component '{component.gate}': {near}")
    if components and not any(component.weight for component in components.values()):
        raise ValueError("every weight is 0, so every score would be 0")
    _check_priorities(components)
    asked_order(components)
    return components


def _check_priorities(components: Mapping[str, ComponentConfig]) -> None:
    ranked = by_priority(components)
    if len({components[name].priority for name in ranked}) < len(ranked):
        raise ValueError(f"two components have the same priority: {', '.join(ranked)}")
    if ranked and components[ranked[-1]].verdict_from is not None:
        raise ValueError(
            f"{ranked[-1]}: verdict_from: has no effect on the last component: its value is always the verdict"
        )


def _listed() -> str:
    return ", ".join(sorted(TAKEN))


Components = Annotated[dict[str, ComponentConfig], AfterValidator(_check_components), code()]
"""Name -> component, with validated names, gates and priorities."""


class GuardsConfig(Section):
    """Guards that flag likely reward hacking."""

    names: Annotated[tuple[GuardName, ...], BeforeValidator(one_or_many)] = GUARDS
    """Active guards. Each guard adds the reward `guard/<name>` to a rollout, 1 if the guard was triggered. []: none."""
    penalty: NonNegativeFloat = 0.0
    """Subtracted from the score for each triggered guard, except for the guard `length`, which is only recorded."""
    max_repeated: float = Field(default=0.6, ge=0, le=1)
    """Repetition: maximum fraction of a turn's 4-grams that are repetitions."""
    min_compressed: float = Field(default=0.12, ge=0, le=1)
    """Repetition: minimum ratio of a turn's compressed size to its uncompressed size."""
    length_ratio: float = Field(default=4.0, gt=1)
    """Length: maximum ratio between a rollout's length and the median length of its group, for longer and for shorter
    rollouts."""
    max_answers: PositiveInt = 3
    """Answer spam: maximum number of different final answers in the last turn."""
    injections: Annotated[tuple[str, ...], code()] = ()
    """Grader injection: further regular expressions (case-insensitive) that no honest answer matches."""

    @field_validator("injections")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"'{pattern}' is not a valid regular expression: {error}") from None
        return patterns
