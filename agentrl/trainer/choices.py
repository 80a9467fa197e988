"""Chooses values for configuration keys that are not set, and prints them."""

from __future__ import annotations

from agentrl.agent_loops.base import agent_loops
from agentrl.chat.parsers import AUTO
from agentrl.chat.parsers.choice import FoundFormat, find_format
from agentrl.config import RunConfig
from agentrl.config.resolve import Choice, ModelFacts, Purpose, notices, resolve, table, with_values
from agentrl.config.rules.megatron import has_layouts
from agentrl.config.rules.model_layout import check_layout
from agentrl.errors import ConfigError, TemplateError
from agentrl.models.facts import model_facts
from agentrl.trainer.builders.overview import rolls_out

FORMAT = "rollout.multi_turn.format"


def resolved(config: RunConfig, purpose: Purpose | None = None) -> RunConfig:
    """Return the configuration with every key set. Print each chosen value with its reason.

    Args:
        purpose: None derives the purpose from `trainer.mode`.

    Raises:
        ConfigError: the model cannot be found, or the configured lengths or the parallel layout do not fit it.
    """
    config, choices = choose(config, purpose)
    for line in notices(config):
        print(f"notice: {line}")
    if choices:
        print(f"chosen for this run (set a key to override it):\n{table(choices)}")
    return config


def choose(config: RunConfig, purpose: Purpose | None = None) -> tuple[RunConfig, list[Choice]]:
    """Like `resolved`, but return the choices and print nothing."""
    modes: dict[str, Purpose] = {"rollout_only": "rollout", "val_only": "eval"}
    purpose = purpose or modes.get(config.trainer.mode, "train")
    facts = model_facts(config.model.path)
    if purpose == "train":
        _check_layouts(config, facts)
    changed, choices = resolve(config, facts, purpose)
    if (found := _tool_format(changed)) is None:
        return changed, choices
    choice = Choice(FORMAT, found.name, found.reason)
    return with_values(changed, {FORMAT: found.name}), [*choices, choice]


def _tool_format(config: RunConfig) -> FoundFormat | None:
    """Find the tool-call format for `auto`; return None if the format is given, not needed or not found.

    If a needed format is not found, the check of the rows refuses the run before a model is loaded.
    """
    turns = config.rollout.multi_turn
    given = (turns.tool_config_path, turns.function_tool_path, turns.environment, *config.trainer.python_objects)
    if turns.format != AUTO or not rolls_out(config) or all(each is None for each in given):
        return None
    name = config.rollout.agent_loop
    loop = agent_loops.get(name) if agent_loops.is_builtin(name) else None
    if own := getattr(loop, "tool_format", None):
        return FoundFormat(own, f"the format of the agent loop '{name}'")
    from agentrl.chat.format import ChatFormat
    from agentrl.models.loading import load_tokenizer  # this import loads torch

    try:
        tokenizer = load_tokenizer(config.model)
        chat = ChatFormat(tokenizer, template_kwargs=config.data.apply_chat_template_kwargs) if tokenizer else None
    except (ConfigError, TemplateError):  # the run raises the error when it loads the tokenizer
        return None
    return found if chat and not (found := find_format(chat)).problem else None


def _check_layouts(config: RunConfig, facts: ModelFacts) -> None:
    """Check that the parallel layout fits the policy, the reference and the critic.

    Raises:
        ConfigError: the layout does not fit a model; one line per mistake.
    """
    check_layout(config, facts.shape)
    for key, path in (("ref.path", config.ref.path), ("critic.path", config.critic.path)):
        if path is not None and has_layouts(config):
            check_layout(config, model_facts(path).shape, key)
