"""`reward.judge`, `reward.components`, `reward.guards`: rewards from models, their mixture, what watches them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

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

from agentrl.config.base import Section, one_or_many
from agentrl.errors import suggestion

GuardName = Literal["repetition", "length", "format_only", "grader_injection", "answer_spam"]
GUARDS: tuple[GuardName, ...] = ("repetition", "length", "format_only", "grader_injection", "answer_spam")
TAKEN = frozenset({"score", "mean", "std", "baseline", "guards_penalty"})
"""Names of rewards that mean something else in a rollout or in its metrics."""

Range = tuple[float, float]


class JudgeConfig(Section):
    """A language model that scores answers, behind an endpoint of OpenAI's chat completions."""

    url: str | None = None
    """The endpoint up to /chat/completions, as in http://localhost:8000/v1."""
    model: str | None = None
    """The judge's name there."""
    prompt: str | None = None
    """A jinja template, or the path of one: {{ question }}, {{ answer }}, {{ last_turn }}, {{ tool_text }},
    {{ ground_truth }}, {{ data_source }}, {{ low }}, {{ high }}. None given: a built-in one asks for correctness."""
    answer_schema: dict[str, JsonValue] | Path | None = None
    """JSON schema of the judge's answer, or a JSON file that holds it. None given: a reason and a score."""
    score_key: str = "score"
    """The property of that answer which is the score."""
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    """How the endpoint is told of the schema; json_object and none are for endpoints that do not know json_schema."""
    score_range: Range = (0.0, 10.0)
    """What the judge's score may be; another one is no verdict."""
    reward_range: Range = (0.0, 1.0)
    """What the two ends of score_range are as a reward; linear in between."""
    temperature: NonNegativeFloat | None = 0.0
    """The judge's sampling temperature; null leaves it to the endpoint."""
    max_tokens: PositiveInt | None = 1024
    """Tokens of the judge's answer; null leaves it to the endpoint."""
    max_concurrent: PositiveInt = 32
    """Requests under way at a time."""
    timeout_s: PositiveFloat = 60.0
    """Seconds one request may take."""
    max_retries: NonNegativeInt = 4
    """Further tries after a failure (429, 5xx, timeout, no connection, no valid answer), with growing waits between."""
    cache_dir: Path | None = None
    """Folder of verdicts, which later runs and other processes use too; without one they are kept in memory alone."""
    api_key_env: str | None = None
    """The environment variable that holds the endpoint's key; the key itself is written nowhere."""

    @field_validator("url")
    @classmethod
    def _is_endpoint(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected an address such as http://localhost:8000/v1")
        if parts.username is not None or parts.query:  # config.yaml keeps it
            raise ValueError("an address holds no password, key or query: name a variable in api_key_env")
        return url and url.rstrip("/").removesuffix("/chat/completions")

    @field_validator("score_range", "reward_range")
    @classmethod
    def _is_range(cls, bounds: Range) -> Range:
        if not bounds[0] < bounds[1]:
            raise ValueError("expected two numbers, the lower one first")
        return bounds


class ComponentConfig(Section):
    """One reward of a mixture."""

    reward: str
    """A built-in reward, auto, path/to/file.py:function, judge or reward_model."""
    weight: float = 1.0
    """What its value is multiplied by; 0 only watches, or serves as a gate."""
    gate: str | None = None
    """The component that must reach gate_threshold for this one to be asked; otherwise it adds nothing."""
    gate_threshold: float = 1.0
    """The least value of the gate's component."""
    priority: int | None = None
    """Of the components that have one, only the first that gives a verdict counts: 1 is asked before 2."""
    verdict_from: float | None = None
    """A lower value is no verdict, and the next priority is asked."""
    reward_kwargs: dict[str, JsonValue] = {}
    """Further keyword arguments of its function; of a judge or reward model, keys laid over its section."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: object) -> object:
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:  # in a mapping of sections no nearest key would be found later
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
    """The components that have a priority, the first one first."""
    ranked = sorted((each.priority, name) for name, each in components.items() if each.priority is not None)
    return [name for _, name in ranked]


def asked_order(components: Mapping[str, ComponentConfig]) -> list[str]:
    """The components so that each comes after its gate and after those of better priority.

    Raises:
        ValueError: there is no such order.
    """
    waits: dict[str, list[str]] = {name: [each.gate] if each.gate else [] for name, each in components.items()}
    for better, worse in pairwise(by_priority(components)):
        waits[worse].append(better)
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        raise ValueError(f"components wait for each other: {' -> '.join(error.args[1])}") from None


def _check_components(components: dict[str, ComponentConfig]) -> dict[str, ComponentConfig]:
    for name, component in components.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in TAKEN:
            raise ValueError(f"'{name}' cannot be the name of a component: letters, digits and _, none of {_listed()}")
        if component.gate is not None and component.gate not in components:
            near = suggestion(component.gate, components.keys() - {name})
            raise ValueError(f"{name}: gate: unknown component '{component.gate}': {near}")
    if components and not any(component.weight for component in components.values()):
        raise ValueError("every weight is 0, so every score would be")
    _check_priorities(components)
    asked_order(components)
    return components


def _check_priorities(components: Mapping[str, ComponentConfig]) -> None:
    ranked = by_priority(components)
    if len({components[name].priority for name in ranked}) < len(ranked):
        raise ValueError(f"two components have the same priority: {', '.join(ranked)}")
    if ranked and components[ranked[-1]].verdict_from is not None:
        raise ValueError(f"{ranked[-1]}: verdict_from: nothing is asked after it, so its value is the verdict")


def _listed() -> str:
    return ", ".join(sorted(TAKEN))


Components = Annotated[dict[str, ComponentConfig], AfterValidator(_check_components)]
"""Name -> component; names, gates and priorities fit together."""


class GuardsConfig(Section):
    """What watches answers for signs that they please the reward and do not earn it."""

    names: Annotated[tuple[GuardName, ...], BeforeValidator(one_or_many)] = GUARDS
    """Those that watch; each adds guard/<name>, 1 where it is raised, to a rollout's rewards. [] for none."""
    penalty: NonNegativeFloat = 0.0
    """Taken off the score for each that the text raised (length, a comparison of siblings, only watches)."""
    max_repeated: float = Field(default=0.6, ge=0, le=1)
    """Repetition: the largest share of a turn's 4-grams that occurred in it before."""
    min_compressed: float = Field(default=0.12, ge=0, le=1)
    """Repetition: the least size of a turn once compressed, as a share of its own."""
    length_ratio: float = Field(default=4.0, gt=1)
    """Length: how many times as long, or as short, as the median of its siblings."""
    max_answers: PositiveInt = 3
    """Answer spam: the most different final answers in the last turn."""
    injections: tuple[str, ...] = ()
    """Grader injection: further regular expressions, case ignored, that no honest answer matches."""

    @field_validator("injections")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"'{pattern}' is no regular expression: {error}") from None
        return patterns
