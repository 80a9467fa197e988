"""Render the judge's template in jinja's sandbox, which forbids unsafe attributes, to a text of limited length."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentrl.errors import ConfigError, Kind, RewardError, suggestion

MAX_CHARACTERS = 8_000_000
"""Maximum length of a request text that a template may produce."""

_KEY = "reward.judge.prompt"


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    # Any: jinja's own signature
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Reject powers, and products with a huge result."""
        sizes = [abs(side) if isinstance(side, int | float) else len(side) for side in (left, right)]
        if operator == "**" or sizes[0] * sizes[1] > MAX_CHARACTERS:
            raise SecurityError(f"the result of '{operator}' on {left!r:.20} and {right!r:.20} is too large")
        return super().call_binop(context, operator, left, right)


class JudgeTemplate:
    """A template for requests to the judge, with variables from `names`.

    Raises:
        ConfigError: the template cannot be parsed, uses names that are not in `names`, or does not contain the answer.
    """

    def __init__(self, text: str, names: Collection[str]) -> None:
        sandbox = _Sandbox(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
        try:
            used = meta.find_undeclared_variables(sandbox.parse(text))
        except TemplateSyntaxError as error:
            raise ConfigError.at(_KEY, Kind.WRONG_VALUE, f"{_KEY}: line {error.lineno}: {error.message}") from error
        for name in sorted(used - set(names)):
            raise ConfigError.at(_KEY, Kind.NOT_FOUND, f"{_KEY}: unknown name '{name}': {suggestion(name, names)}")
        if not used & {"answer", "last_turn"}:
            raise ConfigError.at(
                _KEY,
                Kind.WRONG_VALUE,
                f"{_KEY}: does not contain the answer: add {{{{ answer }}}} or {{{{ last_turn }}}}",
            )
        self._template = sandbox.from_string(text)

    def render(self, values: Mapping[str, str]) -> str:
        """Return the text of a request.

        Raises:
            RewardError: the template fails, breaks a rule of the sandbox, or produces more than `MAX_CHARACTERS`.
        """
        parts, size = list[str](), 0
        try:
            for part in self._template.generate(values):
                parts.append(part)
                size += len(part)
                if size > MAX_CHARACTERS:
                    raise RewardError(f"{_KEY}: renders to more than {MAX_CHARACTERS:,} characters")
        except (TemplateError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
            raise RewardError(f"{_KEY}: {type(error).__name__}: {error}") from error
        return "".join(parts)
