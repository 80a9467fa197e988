"""`rescore`: saved rollouts under other reward functions, side by side with the scores they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig, validate_config
from agentrl.config.reward import NO_REWARD, RewardConfig
from agentrl.config.reward_rules import JUDGE, rewards_asked
from agentrl.errors import ConfigError
from agentrl.registry import load_object
from agentrl.replay.base import Replay, Result
from agentrl.replay.rescored import tables_of, values_of
from agentrl.replay.scoring import COLUMNS, ChatText, Scored, decoded_once, score_all
from agentrl.replay.settings import lookup, replay_config
from agentrl.rewards.base import Reward, close_reward
from agentrl.rewards.builtin import rewards as known_rewards
from agentrl.rewards.loading import given_reward, load_reward
from agentrl.rollouts.garbage import fewer_collections
from agentrl.store.schema import IMPORTED_FROM
from agentrl.trainer.elsewhere import run_loop
from agentrl.trainer.sample_view import visible


def rescore(replay: Replay) -> Result:
    """Score every rollout anew; later modes of the command go by the new scores.

    Rollouts are shown to the functions exactly as training shows them, which `scored_text_sha256` proves row by row;
    where there are no tokens, by the text of their messages. Those that ended in an error are not scored.

    Raises:
        ConfigError: there is no reward function, or one that cannot be used.
        DataError: the rollouts cannot be read.
    """
    config = settings_of(replay)
    rewards = load_rewards(replay, config)
    scored = _score(replay, config, rewards)
    for name in rewards:
        replay.scores[name] = {row.key: row.new[name]["score"] for row in scored if name in row.new}
    names, level = list(rewards), replay.options.level
    failed = any(all(name in row.failures for row in scored) for name in names) and bool(scored)
    summary = "; ".join(_told(replay, config, scored, names))
    return Result("rescore", summary, tables_of(scored, names, level), values_of(scored, names, level), failed)


def settings_of(replay: Replay) -> RunConfig:
    """The configuration, of which rewards read the section `reward`; imported rollouts have none, and need no model."""
    if replay.run.config:
        return replay_config(replay)
    return validate_config({"model": {"path": "unknown"}, **replay.options.overrides})


def load_rewards(replay: Replay, config: RunConfig) -> dict[str, Reward]:
    """Those of `--reward`, by the names given there; else what overrides name; else the run's own, if it is built in.

    Raises:
        ConfigError: there is none, or one that cannot be used.
    """
    asked = replay.options.rewards
    if twice := [name for number, name in enumerate(asked) if name in asked[:number]]:
        raise ConfigError(f"--reward {twice[0]} is given twice")
    if asked:
        return {name: _load(name, replay, config) for name in asked}
    custom = config.reward.custom_reward_function
    if custom.path is None and not _own_is_builtin(replay, config):
        names = " or ".join(["auto", *known_rewards.names()])
        raise ConfigError(f"a reward is needed: --reward file.py:function, or {names}{_own(replay)}")
    _refuse_from_run(replay, config.reward)
    return {_label(config.reward): _loaded(config.reward, replay, config)}


def _label(reward: RewardConfig) -> str:
    """What the reward of a configuration is called."""
    custom = reward.custom_reward_function
    if reward.components:
        return "components"
    return reward.name if custom.path is None else f"{custom.path}:{custom.name}"


def _refuse_from_run(replay: Replay, reward: RewardConfig) -> None:
    """Refuse what a saved run's own configuration would run, or send rollouts and a key to."""
    if reward.components and not lookup(replay.options.overrides, "reward.components"):
        raise ConfigError(
            "the run mixed its reward of components: give reward.components=... or --reward, as it names code"
        )
    own_manager = reward.reward_manager.source == "importlib"
    if own_manager and not lookup(replay.options.overrides, "reward.reward_manager.module.path"):
        raise ConfigError("the run's reward manager is code: give reward.reward_manager.module.path=...")
    if JUDGE in rewards_asked(reward) and not lookup(replay.options.overrides, "reward.judge.url"):
        raise ConfigError("a judge is asked only where the command line says which: give reward.judge.url=...")


def _load(name: str, replay: Replay, config: RunConfig) -> Reward:
    if ":" in name or name.endswith(".py"):
        _refuse_from_run(replay, config.reward)
        reward = given_reward(load_object(name), config.reward, config.data.max_response_length)
        assert reward is not None  # it was given
        return reward
    none = config.reward.custom_reward_function.model_copy(update={"path": None})
    own = config.reward.model_copy(update={"name": name, "custom_reward_function": none, "components": {}})
    _refuse_from_run(replay, own)
    return _loaded(own, replay, config)


def _loaded(reward: RewardConfig, replay: Replay, config: RunConfig) -> Reward:
    """The reward; code goes to a sandbox only where the command line says to which."""
    if not lookup(replay.options.overrides, "reward.sandbox_fusion.url"):
        none = reward.sandbox_fusion.model_copy(update={"url": None})
        reward = reward.model_copy(update={"sandbox_fusion": none})
    return load_reward(reward, config.data.max_response_length)


def _own_is_builtin(replay: Replay, config: RunConfig) -> bool:
    """Whether the reward that `config` names may be run: the command line names it, or it is ours and not code."""
    if config.reward.name == NO_REWARD:
        return False
    if config.reward.components or config.reward.name == JUDGE or lookup(replay.options.overrides, "reward.name"):
        return True  # which of the command line's keys they need is asked where they are loaded
    builtin = config.reward.name == "auto" or known_rewards.is_builtin(config.reward.name)
    return bool(replay.run.config) and not _kept_custom(replay) and builtin


def _own(replay: Replay) -> str:
    if custom := _kept_custom(replay):
        return visible(f" (the run had {custom.get('path')}:{custom.get('name')})")
    return " (the run had none, reward.name=none)" if lookup(replay.run.config, "reward.name") == NO_REWARD else ""


def _kept_custom(replay: Replay) -> Mapping[str, object]:
    """The user's own function that the run was scored by, as its configuration has it; empty where there was none."""
    custom = lookup(replay.run.config, "reward.custom_reward_function")
    return custom if isinstance(custom, dict) and custom.get("path") else {}


def _score(replay: Replay, config: RunConfig, rewards: Mapping[str, Reward]) -> list[Scored]:
    with ExitStack() as stack:
        for reward in rewards.values():
            stack.callback(close_reward, reward)
        stack.enter_context(fewer_collections())
        text = _chat_text(replay, config)
        return run_loop(score_all(replay.run.rollouts(COLUMNS), rewards, text, config.reward.include_tool_text))


def _knows_tokens(replay: Replay) -> bool:
    return IMPORTED_FROM not in replay.run.provenance


def _chat_text(replay: Replay, config: RunConfig) -> ChatText:
    if not _knows_tokens(replay):
        return lambda token_ids: ""  # there are none to be read
    tokenizer = replay.run.tokenizer(replay.options.tokenizer)
    return decoded_once(ChatFormat(tokenizer, template_kwargs=config.data.apply_chat_template_kwargs).text)


def _told(replay: Replay, config: RunConfig, scored: Sequence[Scored], names: Sequence[str]) -> Iterator[str]:
    yield f"{len(scored):,} rollouts under {', '.join(names)}"
    for name in names:
        if num_failed := sum(name in row.failures for row in scored):
            yield f"{name} failed on {num_failed:,} of them"
    if other := sum(row.same_text is False for row in scored):
        yield f"the text of {other:,} is not what training scored"
    if unknown := sum(row.from_messages for row in scored):
        yield f"{unknown:,} have no tokens: scored by the text of their messages, without the markup of calls"
    if _knows_tokens(replay) and (note := replay.run.tokenizer_note(replay.options.tokenizer)):
        yield note
    kept = _kept_custom(replay).get("reward_kwargs")
    if kept and not config.reward.custom_reward_function.reward_kwargs:
        yield f"reward.custom_reward_function.reward_kwargs, in the run {kept}, are not given"
