"""An environment class: the tools made from its methods, and its reserved methods."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from agentrl.errors import AgentRLError, ConfigError, Kind, Problem, UnknownNameError, problems_in
from agentrl.registry import Registry
from agentrl.tools.environment_servers.options import read_options, server_name
from agentrl.tools.function import FunctionTool
from agentrl.tools.schema import function_schema
from agentrl.utils.user_code import defined_at, format_error

KEY = "rollout.multi_turn.environment"
REWARD_METHODS = ("reward", "get_reward")
"""`get_reward` is TRL's name for `reward`."""
RESERVED = ("reset", *REWARD_METHODS, "close")
"""Methods that are not tools."""
ENVIRONMENT_ARGUMENTS = ("task", "seed", "group_seed", "agent_data")
"""Arguments of `reset` besides the row's columns. Each argument is passed only if the signature of `reset` names it."""

environments: Registry[Callable[[], object]] = Registry("environment")
"""Environments by name or import path: classes, or functions without arguments that return an object."""


@dataclass(frozen=True, slots=True, eq=False)
class EnvironmentSpec:
    """Description of an environment.

    Attributes:
        name: see `environment_name`; also the name of the environment's reward.
        make: returns a new object.
        tools: method name -> schema and argument types.
        reset_parameters: parameters of `reset`; None if there is no `reset`.
        reward_method: `reward`, `get_reward`, or None if there is neither.
        has_close: whether there is a `close` method.
        concurrent_calls: whether calls of one turn may run at the same time.
        deterministic: whether the same calls return the same answers.
    """

    name: str
    make: Callable[[], object]
    tools: Mapping[str, FunctionTool]
    reset_parameters: Mapping[str, inspect.Parameter] | None
    reward_method: str | None
    has_close: bool
    concurrent_calls: bool = False
    deterministic: bool = False


def load_environment(name: str) -> EnvironmentSpec:
    """Load the environment `name`. One object is created as an example, checked, and closed again.

    Raises:
        ConfigError: the environment does not exist or cannot be used; one line per problem.
    """
    try:
        make = environments.get(name)
    except UnknownNameError as error:
        raise ConfigError.at(KEY, Kind.NOT_FOUND, f"`{KEY}`: {error}") from error
    except AgentRLError as error:
        raise ConfigError(
            *(Problem(KEY, Kind.OTHER, f"`{KEY}`: {each.text}") for each in problems_in(error))
        ) from error
    return read_environment(make, environment_name(name))


def check_environment(target: str) -> None:
    """Reject a name that is not an environment, and wrong options of a server. Nothing is loaded.

    Raises:
        UnknownNameError: the name, or its file, does not exist.
        ConfigError: an option of a server is wrong.
    """
    if server_name(target) is None:
        environments.check(target)
    else:
        read_options(target)


def has_reward(make: object) -> bool:
    """Whether a class has a method `reward` or `get_reward`."""
    return any(callable(getattr(make, name, None)) for name in REWARD_METHODS)


def environment_name(target: str) -> str:
    """Return the name of an environment: the last part of the import path. `file.py:Warehouse` -> `Warehouse`.

    A server is named by its kind or by its file: `openenv:http://localhost:8000` -> `openenv`.
    """
    return server_name(target) or target.rpartition(":")[2].rpartition(".")[2]


def read_environment(make: Callable[[], object], name: str) -> EnvironmentSpec:
    """Return the description of an environment.

    Raises:
        ConfigError: the environment cannot be used; one line per problem.
    """
    example = _example(make, name)
    methods = dict(_methods(example))
    tools: dict[str, FunctionTool] = {}
    problems = [*_reserved_problems(methods), *_flag_problems(example)]
    for method_name, method in methods.items():
        if method_name not in RESERVED:
            problems += _add_tool(tools, method_name, method)
    if not tools and not problems:
        problems.append(f"it has no public method besides {', '.join(RESERVED)}, so the model has no tool")
    _close_example(methods.get("close"))
    if problems:
        raise _wrong(name, *problems)
    return EnvironmentSpec(
        name=name,
        make=make,
        tools=tools,
        reset_parameters=inspect.signature(methods["reset"]).parameters if "reset" in methods else None,
        reward_method=next((each for each in REWARD_METHODS if each in methods), None),
        has_close="close" in methods,
        concurrent_calls=bool(getattr(example, "concurrent_calls", False)),
        deterministic=bool(getattr(example, "deterministic", False)),
    )


def required_names(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of the parameters that a call must pass."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, each in parameters.items() if each.default is each.empty and each.kind not in optional]


def _wrong(name: str, *problems: str) -> ConfigError:
    return ConfigError(
        *(Problem(KEY, Kind.WRONG_VALUE, f"`{KEY}`: environment '{name}': {problem}") for problem in problems)
    )


def _example(make: Callable[[], object], name: str) -> object:
    if not callable(make):
        raise _wrong(name, f"expected a class, or a function that returns an object, not {make!r:.100}")
    if inspect.isabstract(make):
        missing = ", ".join(sorted(make.__abstractmethods__))  # type: ignore[attr-defined]  # abstract classes have it
        raise _wrong(name, f"the class is abstract, it does not define {missing}")
    try:
        example = make()
    except (Exception, SystemExit) as error:  # a user's constructor may raise anything
        raise _wrong(name, f"it cannot be created (it is called without arguments): {format_error(error)}") from error
    if inspect.iscoroutine(example):
        example.close()
        raise _wrong(name, "expected an object, not a coroutine: create it in a plain function")
    return example


def _methods(example: object) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public methods, sorted by name as in TRL. Properties are not evaluated; static methods are skipped."""
    for name in dir(example):
        static = inspect.getattr_static(example, name, None)
        if name.startswith("_") or isinstance(static, property) or hasattr(static, "attrname"):  # cached_property
            continue
        if inspect.ismethod(method := getattr(example, name, None)):
            yield name, method


def _add_tool(tools: dict[str, FunctionTool], name: str, method: Callable[..., object]) -> Iterator[str]:
    """Add the tool of a method; if the method cannot be a tool, yield the reason."""
    advice = f"begin its name with an underscore if the model should not call it{defined_at(method)}"
    if not (inspect.getdoc(method) or "").strip():
        yield f"method '{name}' has no docstring, which the model needs as its description: add one, or {advice}"
        return
    try:
        tools[name] = FunctionTool(method, *function_schema(method, name))
    except ConfigError as error:
        yield f"method '{name}': {error.problems[0].text.partition(': ')[2]}: fix this, or {advice}"


def _reserved_problems(methods: Mapping[str, Callable[..., object]]) -> Iterator[str]:
    if methods.keys() >= {*REWARD_METHODS}:
        yield "it has both reward and get_reward: keep one"
    for name in RESERVED[1:]:
        parameters = inspect.signature(methods[name]).parameters if name in methods else {}
        if needed := required_names(parameters):
            yield f"{name} is called without arguments, but needs {', '.join(needed)}"


def _flag_problems(example: object) -> Iterator[str]:
    for name in ("concurrent_calls", "deterministic"):
        if not isinstance(value := getattr(example, name, False), bool):
            yield f"{name} must be True or False, not {value!r:.100}"


def _close_example(close: Callable[[], object] | None) -> None:
    """Close the example object after the checks, on a thread without an event loop, because `close` may be async.

    Errors are expected and ignored, because `reset` was never called.
    """

    def run() -> None:
        try:
            if inspect.isawaitable(closing := close() if close else None):
                asyncio.run(_awaited(closing))
        except (Exception, SystemExit):  # such as a missing attribute, which `reset` would have set
            return

    if close is not None:
        thread = threading.Thread(target=run, name="agentrl-close-environment", daemon=True)
        thread.start()
        thread.join(_CLOSE_S)


async def _awaited(closing: Awaitable[object]) -> None:
    await closing


_CLOSE_S = 10.0
"""Maximum seconds that `close` of the example object may take."""
