"""The arguments of an environment's `reset`: columns of the row, and the task, seeds and data of the rollout."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from pydantic import JsonValue

from agentrl.errors import DataError, suggestion
from agentrl.tools.binding import AgentData
from agentrl.tools.environments.spec import ENVIRONMENT_ARGUMENTS, EnvironmentSpec, required_names
from agentrl.types.task import Task

_KEY = "create_kwargs"


def reset_arguments(spec: EnvironmentSpec, data: AgentData) -> dict[str, object]:
    """Return the keyword arguments for `reset`.

    If a column of the row has the same name as one of `ENVIRONMENT_ARGUMENTS`, `reset` gets the column's value.
    """
    parameters = spec.reset_parameters or {}
    named = {name: getattr(data, name) for name in ENVIRONMENT_ARGUMENTS[:-1] if name in parameters}
    if "agent_data" in parameters:
        named["agent_data"] = data
    columns = _columns(spec, data.task)
    if not _takes_all(parameters):
        columns = {name: value for name, value in columns.items() if name in parameters}
    return {**named, **columns}


def check_row(spec: EnvironmentSpec, task: Task) -> None:
    """Reject a row that lacks an argument of `reset`, or has wrong `tools_kwargs` for the environment.

    Raises:
        DataError: the message names the field.
    """
    parameters = spec.reset_parameters or {}
    for key in task.tools_kwargs.get(spec.name, {}):
        if key != _KEY:
            raise DataError(f"field 'tools_kwargs.{spec.name}': unknown key '{key}': did you mean '{_KEY}'?")
    for name in _given(spec, task):
        if name not in parameters and not _takes_all(parameters):
            where = f"field 'tools_kwargs.{spec.name}.{_KEY}'"
            raise DataError(
                f"{where}: reset of environment '{spec.name}' does not accept '{name}': {suggestion(name, parameters)}"
            )
    known = {**_columns(spec, task), **dict.fromkeys(ENVIRONMENT_ARGUMENTS)}
    for name in required_names(parameters):
        if name not in known:
            hint = suggestion(name, known)
            raise DataError(f"reset of environment '{spec.name}' needs '{name}', which the row does not have: {hint}")


def _columns(spec: EnvironmentSpec, task: Task) -> dict[str, object]:
    text = bool(task.extra_info.get("text_prompt"))
    own = {
        "prompt": task.messages[-1].get("content") if text and task.messages else list(task.messages),
        "ground_truth": task.ground_truth,
        "data_source": task.data_source,
    }
    return {**own, **task.extra_info, **_given(spec, task)}


def _given(spec: EnvironmentSpec, task: Task) -> Mapping[str, JsonValue]:
    given = task.tools_kwargs.get(spec.name, {}).get(_KEY) or {}
    if not isinstance(given, Mapping):
        raise DataError(f"field 'tools_kwargs.{spec.name}.{_KEY}': expected an object, got {given!r:.100}")
    return given


def _takes_all(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(each.kind is each.VAR_KEYWORD for each in parameters.values())
