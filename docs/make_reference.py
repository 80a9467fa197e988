"""Writes docs/reference.md and docs/metrics.md from the code: `make reference`, or `python docs/make_reference.py`."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentrl.agent_loops.base import AgentLoop, Generate, agent_loops
from agentrl.agent_loops.conversation import Conversation
from agentrl.algos.advantages import ADVANTAGE_ESTIMATORS, AdvantageBatch
from agentrl.algos.base import TokenBatch
from agentrl.algos.losses import POLICY_LOSSES
from agentrl.algos.losses.aggregation import MODES
from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers import tool_parsers
from agentrl.config.presets import PRESETS
from agentrl.config.run import RunConfig
from agentrl.config.validate import config_fields, section_of
from agentrl.data import columns
from agentrl.engines.base import SamplingParams
from agentrl.interactions.base import BaseInteraction, InteractionData
from agentrl.registry import Registry
from agentrl.rewards.base import reward_models
from agentrl.rewards.builtin.registry import rewards
from agentrl.rewards.reward_view import RolloutInfo
from agentrl.telemetry.base import trackers
from agentrl.telemetry.metrics import TOPICS
from agentrl.telemetry.metrics.base import Metric
from agentrl.tools.base import BaseTool, InfraError, ToolError, ToolResponse
from agentrl.tools.binding import AgentData
from agentrl.tools.function import FunctionTool, tool
from agentrl.types.rollout import Outcome, Rollout, Stop, ToolCall, TurnReward
from agentrl.types.task import Task, ToolOptions
from agentrl.types.trajectory import Author, Segment, Trajectory

PAGE = Path(__file__).with_name("reference.md")
FRAME = Path(__file__).with_name("reference.md.in")
METRICS_PAGE = Path(__file__).with_name("metrics.md")
METRICS_FRAME = Path(__file__).with_name("metrics.md.in")
_FIELDS = ("Args", "Attributes", "Raises", "Returns")


def page() -> str:
    """Return docs/reference.md: the text of `FRAME`, in which text from the code replaces each `<!-- name -->`."""
    parts = {
        "configuration": _configuration(),
        "task columns": _table(("column", "type", "meaning"), _columns(columns.TASK)),
        "extra_info columns": _table(("key", "type", "meaning"), _columns(columns.EXTRA_INFO)),
        "tool_config": _table(("key", "type", "meaning"), _fields_of(ToolOptions)),
        "conversation columns": _table(("column", "type", "meaning"), _columns(columns.CONVERSATION)),
        "pair columns": _table(("column", "type", "meaning"), _columns(columns.PAIR)),
        "rollout info": _table(("key", "type", "meaning"), _typed_dict(RolloutInfo)),
        "agent loops": _classes(AgentLoop, Conversation),
        "what agent loops meet": _classes(
            *(
                Generate,
                SamplingParams,
                ParsedTurn,
                ParsedCall,
                Task,
                Rollout,
                ToolCall,
                TurnReward,
                Trajectory,
                Segment,
            )
        ),
        "stop reasons": _members(Stop),
        "outcomes": _members(Outcome),
        "authors": _members(Author),
        "tools": "\n\n".join(
            [_function(tool, "tool"), _classes(BaseTool, ToolResponse, ToolError, InfraError, AgentData)]
        ),
        "function tool": _classes(FunctionTool),
        "interactions": _classes(BaseInteraction, InteractionData),
        "algorithms": _table(("`algorithm.name`", "meaning"), ((_code(n), p.summary) for n, p in PRESETS.items())),
        "names": _table(("key", "names"), _names()),
        "batches": _classes(AdvantageBatch, TokenBatch),
    }
    text = FRAME.read_text(encoding="utf-8")
    asked = set(re.findall(r"^<!-- (.+) -->$", text, flags=re.MULTILINE))
    assert asked == parts.keys(), asked ^ parts.keys()
    return re.sub(r"^<!-- (.+) -->$", lambda found: parts[found[1]], text, flags=re.MULTILINE)


def metrics_page() -> str:
    """Return docs/metrics.md: the text of `METRICS_FRAME`, with one table for each module that declares metrics."""
    tables = (f"## {_title(topic)}\n\n{_metrics(_declared(topic))}" for topic in TOPICS)
    return METRICS_FRAME.read_text(encoding="utf-8").replace("<!-- metrics -->", "\n\n".join(tables))


def _title(topic: types.ModuleType) -> str:
    """Return the first sentence of the docstring of a module, without "Metrics of" and without the period."""
    text = (topic.__doc__ or "").partition(". ")[0].removeprefix("Metrics of ").removesuffix(".")
    return text[:1].upper() + text[1:]


def _declared(topic: types.ModuleType) -> Iterator[Metric]:
    return (each for each in vars(topic).values() if isinstance(each, Metric))


def _metrics(declared: Iterable[Metric]) -> str:
    rows = ((_code(m.name), m.unit, m.meaning, str(m.healthy or ""), _shown(m)) for m in declared)
    return _table(("metric", "unit", "meaning", "healthy", "shown"), rows)


def _shown(metric: Metric) -> str:
    places = {"console": metric.console, "report": metric.report, "viewer": metric.viewer}
    return ", ".join(name for name, place in places.items() if place is not None)


def _configuration() -> str:
    sections = {name: field.description or "" for name, field in RunConfig.model_fields.items() if section_of(field)}
    by_section: dict[str, list[tuple[str, ...]]] = {name: [] for name in sections}
    for key, field in config_fields():
        row = (_code(key), _type(field), _default(field), field.description or "")
        by_section.setdefault(key.partition(".")[0], []).append(row)
    tables = (
        f"### `{name}.*`\n\n{_table(('key', 'type', 'default', 'meaning'), rows)}" for name, rows in by_section.items()
    )
    return "\n\n".join(tables)


def _type(field: FieldInfo) -> str:
    return _bounded(_type_text(field.annotation), field.metadata)


def _bounded(text: str, metadata: Iterable[object]) -> str:
    """Return the type with its limits; the limits come from the field, or from a type such as PositiveInt."""
    limits = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [(sign, getattr(each, name, None)) for each in metadata for name, sign in limits.items()]
    return " ".join([text, *(f"{sign} {limit}" for sign, limit in found if limit is not None)])


def _type_text(annotation: Any) -> str:  # Any: a type annotation of any form
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _bounded(_type_text(arguments[0]), annotation.__metadata__)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if each is types.NoneType else _type_text(each) for each in arguments)
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin is tuple:
        return f"list of {_type_text(arguments[0])}" if arguments[1:] == (...,) else f"list of {len(arguments)}"
    if origin in (dict, Mapping):
        return "mapping"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path", dict: "mapping"}
    return names.get(annotation, getattr(annotation, "__name__", "value"))


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return _code(f"[{', '.join(map(str, value))}]")
    return _code(str(value)) if str(value) else '`""`'


def _columns(given: columns.Columns) -> Iterator[tuple[str, ...]]:
    return ((_code(name), kind, meaning) for name, (kind, meaning) in given.items())


def _fields_of(section: type[ToolOptions]) -> Iterator[tuple[str, ...]]:
    return ((_code(name), _type(field), field.description or "") for name, field in section.model_fields.items())


def _typed_dict(kind: type) -> Iterator[tuple[str, ...]]:
    """Yield name, type and docstring of each field. Python does not keep these docstrings, so the source is parsed."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            yield _code(ast.unparse(field.target)), _code(ast.unparse(field.annotation)), str(text.value.value)


def _members(kind: type[enum.StrEnum]) -> str:
    """Return a table of an enum's members. The meaning of a member is the comment after it in the source."""
    comments = dict(re.findall(r'^    (\w+) = ".*?"(?:  # (.*))?$', inspect.getsource(kind), flags=re.MULTILINE))
    return _table(("value", "meaning"), ((_code(m.value), _sentence(comments.get(m.name, ""))) for m in kind))


def _names() -> Iterator[tuple[str, str]]:
    named: dict[str, Registry[Any]] = {  # Any: only names are read
        "rollout.agent.default_agent_loop": agent_loops,
        "rollout.multi_turn.format": tool_parsers,
        "reward.name": rewards,
        "algorithm.adv_estimator": ADVANTAGE_ESTIMATORS,
        "actor.policy_loss.loss_mode": POLICY_LOSSES,
        "trainer.logger": trackers,
    }
    more = {"reward.name": ["auto", "none", *reward_models.names()], "trainer.logger": ["console"]}
    for key, registry in named.items():
        own = [name for name in registry.names() if registry.is_builtin(name)]
        yield _code(key), ", ".join(map(_code, [*own, *more.get(key, [])]))
    yield _code("actor.loss_agg_mode"), ", ".join(map(_code, MODES))


def _classes(*kinds: type) -> str:
    return "\n\n".join(map(_class, kinds))


def _class(kind: type) -> str:
    lines = [f"#### `{kind.__name__}`", f"`{kind.__module__}`", _text(inspect.getdoc(kind) or "")]
    if dataclasses.is_dataclass(kind):
        lines.insert(2, f"`{_signature(kind.__name__, kind.__init__).removesuffix(' -> None')}`")
    for name, member in vars(kind).items():
        if name.startswith("_") or not (inspect.getdoc(member) or isinstance(member, property)):
            continue
        if isinstance(member, property) and member.fget:
            lines.append(f"- `{name}`: {_line(inspect.getdoc(member))}")
        elif inspect.isfunction(member):
            lines.append(f"- `{_signature(name, member)}`\n  {_line(inspect.getdoc(member))}")
    return "\n\n".join(line for line in lines if line)


def _function(function: types.FunctionType, name: str) -> str:
    doc = _text(inspect.getdoc(function) or "")
    return "\n\n".join([f"#### `{name}`", f"`{function.__module__}`", f"`{_signature(name, function)}`", doc])


def _signature(name: str, function: types.FunctionType) -> str:
    words, marked = [], False
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not marked:
            words, marked = [*words, "*"], True
        marked = marked or each.kind is each.VAR_POSITIONAL
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = "" if each.annotation is each.empty else f": {_named(each.annotation)}"
        words.append(f"{star}{each.name}{kind}{'' if each.default is each.empty else f' = {each.default!r}'}")
    returned = inspect.signature(function).return_annotation
    gives = "" if returned is inspect.Signature.empty else f" -> {_named(returned)}"
    start = "await " if inspect.iscoroutinefunction(function) else ""
    return f"{start}{name}({', '.join(word for word in words if word != 'self')}){gives}"


def _named(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _text(doc: str) -> str:
    """Return a docstring as Markdown: `Args:`, `Attributes:`, `Raises:` become lists, indented examples become code."""
    blocks = []
    for block in re.split(r"\n\n+", doc):
        head, _, rest = block.partition("\n")
        if head.rstrip(":") in _FIELDS:
            blocks += [f"{head}", _entries(rest)]
        elif block.startswith("    "):
            blocks.append(f"```\n{textwrap.dedent(block)}\n```")
        else:
            blocks.append(block)
    return "\n\n".join(blocks).replace("```\n\n```\n", "\n")


def _entries(text: str) -> str:
    items = re.split(r"\n(?=\S)", textwrap.dedent(text))
    split = (" ".join(item.split()).partition(": ") for item in items)
    return "\n".join(f"- `{name}`: {meaning}" if meaning else f"- {name}" for name, _, meaning in split)


def _line(doc: str | None) -> str:
    """Return a short docstring as one line."""
    text = re.sub(r"\n\n(Args|Raises|Returns):\n", r" \1: ", doc or "")
    return " ".join(text.split())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "." if text else ""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;').replace(chr(10), ' ') for cell in line)} |" for line in lines
    )


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    METRICS_PAGE.write_text(metrics_page(), encoding="utf-8")
