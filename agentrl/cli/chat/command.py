"""`agentrl chat MODEL`: how a model sees a conversation with tools, and what a run with this model would refuse."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from agentrl.cli.compose import compose_config, is_override, quoted
from agentrl.cli.early import check_model_early
from agentrl.config import RunConfig
from agentrl.errors import ConfigError

_TOOL_KEYS = {".py": "function_tool_path", ".yaml": "tool_config_path", ".yml": "tool_config_path"}


def chat(options: argparse.Namespace) -> int:
    """Check the model; return 1 if a run would refuse it, else 0.

    Raises:
        ConfigError: the model, the tools or the data cannot be read; one line per mistake.
    """
    config = _config(options)
    # these import transformers
    from agentrl.chat.model_check import check_model
    from agentrl.cli.chat.inputs import read_inputs
    from agentrl.cli.chat.output import document, print_check

    inputs = read_inputs(config, _json_tools(options), options.data)
    found = check_model(inputs.chat, inputs.schemas, config.rollout.multi_turn.format, inputs.start)
    if options.json:
        print(json.dumps(document(config.model.path, inputs.chat, found), indent=2))
    else:
        print_check(config.model.path, inputs.chat, found)
    return int(bool(found.refusals))


def _config(options: argparse.Namespace) -> RunConfig:
    models = [word for word in options.overrides if not is_override(word)]
    overrides = [word for word in options.overrides if is_override(word)]
    if len(models) > 1:
        raise ConfigError.keyless(f"expected one model, got {len(models)}: {', '.join(models)}")
    overrides += [f"model.path={quoted(model)}" for model in models]
    tools: Path | None = options.tools
    if tools is not None and (key := _TOOL_KEYS.get(tools.suffix)):
        overrides.append(f"rollout.multi_turn.{key}={quoted(str(tools))}")
    elif tools is not None and tools.suffix != ".json":
        raise ConfigError.keyless(f"--tools: expected a .py, .yaml or .json file, got '{tools}'")
    return compose_config(overrides, options.config_dir, check_model_early)


def _json_tools(options: argparse.Namespace) -> Path | None:
    tools: Path | None = options.tools
    return tools if tools is not None and tools.suffix == ".json" else None
