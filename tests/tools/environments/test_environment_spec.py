"""Which classes are environments: their tools, and one clear message per mistake before anything is loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property, partial
from typing import Literal

import pytest
from transformers.utils import get_json_schema

from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import ConfigError
from agentrl.registry import give
from agentrl.tools.environments.spec import load_environment, read_environment
from agentrl.tools.toolbox import load_toolbox


class Counting:
    """Written as TRL documents its environments."""

    closed = 0

    def __init__(self):
        self.value = 0

    def reset(self, target=3, **kwargs) -> str | None:
        self.value, self.target = 0, target
        return f"Count to {target}."

    def get_reward(self) -> float:
        return float(self.value == self.target)

    def count(self, step: int, note: str = "none", way: Literal["up", "down"] = "up") -> int:
        """
        Change the value.

        Args:
            step: How far to go.
            note: What to write down.
            way: The direction.

        Returns:
            The new value.
        """
        self.value += step if way == "up" else -step
        return self.value

    async def ask(self, places: list[str], exact: bool, part: float) -> str:
        """Ask about places.

        Args:
            places: Their names.
            exact: Whether the
                names are complete.
            part: A share.
        """
        return str((places, exact, part))

    @property
    def shown(self):
        raise RuntimeError("a property is not evaluated")

    @cached_property
    def slow(self):
        raise RuntimeError("a cached property is not evaluated")

    @staticmethod
    def helper(x):
        return x

    def _private(self, anything):
        return anything

    def close(self):
        type(self).closed += 1


def test_public_methods_are_tools_with_the_schemas_that_trl_makes():
    """TRL passes methods to `apply_chat_template`, which calls `get_json_schema` of transformers."""
    spec = read_environment(Counting, "Counting")
    assert [*spec.tools] == ["ask", "count"]  # sorted, as in TRL
    for name, tool in spec.tools.items():
        theirs = get_json_schema(getattr(Counting(), name))["function"]
        ours = tool.schema.for_template()["function"]
        assert (ours["name"], ours["description"]) == (theirs["name"], theirs["description"])
        assert {"type": "object", **shape(ours["parameters"])} == shape(theirs["parameters"])
    assert (spec.name, spec.reward_method, spec.has_close, spec.deterministic) == (
        "Counting",
        "get_reward",
        True,
        False,
    )
    assert Counting.closed == 1  # the object that was checked


def shape(parameters):
    """A schema without defaults, which transformers does not write."""
    properties = {
        name: {key: value for key, value in each.items() if key not in ("default",)}
        for name, each in parameters["properties"].items()
    }
    return {"type": parameters["type"], "properties": properties, "required": parameters["required"]}


class Abstract(ABC):
    @abstractmethod
    def act(self) -> str: ...

    @abstractmethod
    def look(self) -> str: ...


class Raises:
    def __init__(self):
        raise OSError("no such server")


class Needs:
    def __init__(self, url):
        self.url = url


class Empty:
    def reset(self):
        return None

    def _act(self) -> str:
        return ""


class Untyped:
    def act(self, x):
        """Act."""

    def look(self) -> str:
        return ""

    def close(self, force):
        """Close."""


class Both:
    concurrent_calls = "yes"

    def reward(self):
        return 1

    def get_reward(self):
        return 1

    def act(self, *many: int) -> str:
        """Act."""
        return ""


async def later():
    return Counting()


@pytest.mark.parametrize(
    ("make", "complaints"),
    [
        (5, ["expected a class, or a function that returns an object, not 5"]),
        (Abstract, ["the class is abstract, it does not define act, look"]),
        (Raises, ["it cannot be created (it is called without arguments): OSError: no such server"]),
        (Needs, ["it cannot be created (it is called without arguments): TypeError:"]),
        (later, ["expected an object, not a coroutine"]),
        (Empty, ["it has no public method besides reset, reward, get_reward, close"]),
        (
            Untyped,
            [
                "close is called without arguments, but needs force",
                "method 'act': parameter 'x' needs a type: fix this, or begin its name with an underscore",
                "method 'look' has no docstring",
            ],
        ),
        (
            Both,
            [
                "it has both reward and get_reward: keep one",
                "concurrent_calls must be True or False, not 'yes'",
                "method 'act': parameter '*many",
            ],
        ),
    ],
)
def test_each_mistake_is_one_line(make, complaints):
    with pytest.raises(ConfigError) as caught:
        read_environment(make, "World")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(complaints)
    for line, complaint in zip(lines, complaints, strict=True):
        assert line.startswith(f"'rollout.multi_turn.environment': environment 'World': {complaint}")
    assert {problem.key for problem in caught.value.problems} == {"rollout.multi_turn.environment"}


def test_a_method_that_is_no_tool_names_its_line():
    with pytest.raises(ConfigError, match=rf"\({__file__}:{Untyped.act.__code__.co_firstlineno}\)"):
        read_environment(Untyped, "Untyped")


def test_a_name_of_a_file_is_looked_up_there(tmp_path):
    (tmp_path / "world.py").write_text("class World:\n    def act(self) -> str:\n        'Act.'\n        return ''\n")
    assert [*load_environment(f"{tmp_path}/world.py:World").tools] == ["act"]
    with pytest.raises(ConfigError, match=r"'rollout.multi_turn.environment': '.*world.py' has no 'Wold': did you"):
        load_environment(f"{tmp_path}/world.py:Wold")
    (tmp_path / "broken.py").write_text("import this_is_missing\n")
    with pytest.raises(ConfigError, match=r"'rollout.multi_turn.environment': cannot import .*this_is_missing"):
        load_environment(f"{tmp_path}/broken.py:World")


def test_an_object_from_python_has_the_name_of_its_class():
    assert load_environment(give(Counting)).name == "Counting"
    assert load_environment(give(partial(Counting))).name == "Counting"


def test_a_name_may_not_be_used_twice(tmp_path):
    (tmp_path / "tools.py").write_text(
        "from agentrl.tools import tool\n\n@tool\ndef count(x: int) -> str:\n    'Count.'\n    return ''\n"
    )
    twice = MultiTurnConfig(function_tool_path=tmp_path / "tools.py", environment=give(Counting))
    with pytest.raises(ConfigError, match="two tools have the name 'count'"):
        load_toolbox(twice)
