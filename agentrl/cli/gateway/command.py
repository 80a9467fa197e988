"""Options and configuration of `agentrl gateway`. All early checks run before torch is imported."""

from __future__ import annotations

import argparse
import os
from functools import partial

from agentrl.cli.compose import compose_config, quoted
from agentrl.cli.early import check_early
from agentrl.config import RunConfig
from agentrl.config.paths import absolute
from agentrl.config.reward import NO_REWARD
from agentrl.config.rules.recording import check_recording
from agentrl.errors import ConfigError
from agentrl.gateway.recording.requests import KEY
from agentrl.run_folder.location import check_free

KEY_VARIABLE, ADMIN_VARIABLE = "AGENTRL_GATEWAY_KEY", "AGENTRL_ADMIN_KEY"
"""Environment variables that can contain the API keys. If a variable is not set, a new key is generated."""

MAX_TURNS = 1000
"""Default of `rollout.multi_turn.max_assistant_turns` in this command. There is a limit, because all turns of a rollout
stay in memory until the rollout ends."""


def gateway(options: argparse.Namespace) -> None:
    """Serve the model until Ctrl-C; rollouts are saved in `trainer.default_local_dir`.

    Raises:
        AgentRLError: a key, the model, the port or the folder cannot be used.
    """
    overrides = [*([f"model.path={quoted(options.model)}"] if options.model else []), *options.overrides]
    config = compose_config(
        overrides, options.config_dir, check_recording, partial(check_early, purpose="rollout"), file=options.config
    )
    config = for_recording(config)
    keys = [_key(name) for name in (KEY_VARIABLE, ADMIN_VARIABLE)]
    if keys[0] and keys[0] == keys[1]:
        raise ConfigError.keyless(f"{KEY_VARIABLE} and {ADMIN_VARIABLE} are the same: clients could end rollouts")
    if options.idle_s <= 0:
        raise ConfigError.keyless(f"--idle-s: expected seconds above 0, got {options.idle_s:g}")
    check_free(absolute(config))
    if options.dry_run:
        from agentrl.cli.dry_run import show_run  # may fetch the config.json of a model from the hub

        show_run(config, keys=True, explain=False)
        return
    from agentrl.cli.gateway.serve import serve  # imports torch and transformers
    from agentrl.trainer.builders.recording import Keys

    serve(config, options.host, options.port, options.idle_s, Keys(*keys))


def for_recording(config: RunConfig) -> RunConfig:
    """Change `config` for a run that only records: no reward function, and by default one rollout per group."""
    trainer = {"mode": "rollout_only", "total_training_steps": None}
    if "experiment_name" not in config.trainer.model_fields_set:
        trainer["experiment_name"] = "gateway"
    given = config.rollout.multi_turn.max_assistant_turns
    turns = config.rollout.multi_turn.model_copy(update={"max_assistant_turns": given or MAX_TURNS})
    sections = {
        "trainer": config.trainer.model_copy(update=trainer),
        "rollout": config.rollout.model_copy(update={"n": config.rollout.n or 1, "multi_turn": turns}),
        "reward": config.reward.model_copy(update={"name": NO_REWARD}),
    }
    return config.model_copy(update=sections)


def _key(name: str) -> str:
    key = os.environ.get(name, "")
    if key and not KEY.fullmatch(key):
        raise ConfigError.keyless(f"{name}: expected 16 to 128 letters, digits, '-' and '_'")
    return key
