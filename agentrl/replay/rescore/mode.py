"""`rescore`: score saved rollouts with other reward functions, and compare with the saved scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from agentrl.chat.format import ChatFormat
from agentrl.concurrency.notebook import run_loop
from agentrl.config import RunConfig
from agentrl.config.reward import NO_REWARD, RewardConfig
from agentrl.config.rules.reward import JUDGE, REWARD_MODEL, rewards_asked
from agentrl.errors import ConfigError, Kind
from agentrl.registry import load_object
from agentrl.replay.base import Replay, Result
from agentrl.replay.rescore.scoring import COLUMNS, ChatText, Scored, cached_text, score_all
from agentrl.replay.rescore.tables import tables_of, values_of
from agentrl.replay.settings import refuse_missing_code, replay_config
from agentrl.replay.trusted_config import dropped_values, lookup
from agentrl.rewards.base import Reward, close_reward
from agentrl.rewards.builtin.registry import rewards as known_rewards
from agentrl.rewards.loading import given_reward, load_reward
from agentrl.rollouts.gc_tuning import fewer_collections
from agentrl.security.visible_text import visible
from agentrl.store.schema import IMPORTED_FROM


def rescore(replay: Replay) -> Result:
    """Score every rollout with the given rewards. Later modes of the same command use the new scores.

    Reward functions get the text that was scored in training, decoded again from the saved tokens. The summary counts
    rollouts whose text differs from the saved hash (`scored_text_sha256`). Rollouts without tokens are scored by the
    text of their messages. Rollouts that ended in an error are not scored.

    Raises:
        ConfigError: no reward function is given, or one cannot be used.
        DataError: the rollouts cannot be read.
    """
    config = replay_config(replay)
    rewards = load_rewards(replay, config)
    scored = _score(replay, config, rewards)
    for name in rewards:
        replay.scores[name] = {row.key: row.new[name]["score"] for row in scored if name in row.new}
    names, level = list(rewards), replay.options.level
    failed = any(all(name in row.failures for row in scored) for name in names) and bool(scored)
    summary = "; ".join(_summary(replay, config, scored, names))
    return Result("rescore", summary, tables_of(scored, names, level), values_of(scored, names, level), failed)


def load_rewards(replay: Replay, config: RunConfig) -> dict[str, Reward]:
    """Return name -> reward.

    `--reward` names the rewards. Without `--reward`, the reward that the overrides name is used. If the overrides name
    no reward, the run's own reward is used, but only if it is built in.

    Raises:
        ConfigError: no reward is given, or one cannot be used.
    """
    given = replay.options.rewards
    if twice := [name for number, name in enumerate(given) if name in given[:number]]:
        raise ConfigError.keyless(f"--reward {twice[0]} is given twice")
    if given:
        return {name: _load(name, replay, config) for name in given}
    _refuse_custom_reward(replay)
    custom = config.reward.custom_reward_function
    if custom.path is None and not _is_builtin(replay, config):
        names = ", ".join(["auto", *known_rewards.names()])
        raise ConfigError.keyless(f"no reward: give --reward file.py:function, or one of {names}{_reward_hint(replay)}")
    _refuse_from_run(replay, config.reward)
    return {_label(config.reward): load_reward(config.reward, config.data.max_response_length)}


def _label(reward: RewardConfig) -> str:
    """Name of a configuration's reward."""
    custom = reward.custom_reward_function
    if reward.components:
        return "components"
    return reward.name if custom.path is None else f"{custom.path}:{custom.name}"


def _refuse_custom_reward(replay: Replay) -> None:
    """Raise an error if the run's reward is custom code and the command line names no reward."""
    names = ("reward.name", "reward.components", "reward.custom_reward_function.path")
    if any(lookup(replay.options.overrides, name) for name in names):
        return
    if lookup(replay.run.config, "reward.components"):
        raise ConfigError.at(
            "reward.components",
            Kind.MISSING,
            "the reward of the run has several components, which may name code: give reward.components=... or --reward",
        )
    refuse_missing_code(replay, ("reward.name",))


def _refuse_from_run(replay: Replay, reward: RewardConfig) -> None:
    """Refuse code, reward models and judge URLs that the run names and the command line does not.

    A judge URL is refused, because the judge receives the rollouts and an API key.
    """
    overrides = replay.options.overrides
    if lookup(overrides, "reward.reward_manager") is None:
        refuse_missing_code(replay, ("reward.reward_manager.module.path", "reward.reward_manager.name"))
    used = rewards_asked(reward)
    if JUDGE in used and not lookup(overrides, "reward.judge.url"):
        raise ConfigError.at(
            "reward.judge.url",
            Kind.MISSING,
            "replay uses a judge only from the command line: give reward.judge.url=...",
        )
    if JUDGE in used:
        refuse_missing_code(replay, ("reward.judge.prompt", "reward.judge.answer_schema"))
    if REWARD_MODEL in used and not lookup(overrides, "reward.reward_model.path"):
        raise ConfigError.at(
            "reward.reward_model.path",
            Kind.MISSING,
            "replay loads a reward model only from the command line: give reward.reward_model.path=...",
        )


def _load(name: str, replay: Replay, config: RunConfig) -> Reward:
    if ":" in name or name.endswith(".py"):
        _refuse_from_run(replay, config.reward)
        reward = given_reward(load_object(name), config.reward, config.data.max_response_length)
        assert reward is not None  # a reward function was passed
        return reward
    none = config.reward.custom_reward_function.model_copy(update={"path": None})
    own = config.reward.model_copy(update={"name": name, "custom_reward_function": none, "components": {}})
    _refuse_from_run(replay, own)
    return load_reward(own, config.data.max_response_length)


def _is_builtin(replay: Replay, config: RunConfig) -> bool:
    """Whether the reward in `config` is safe to run: the command line names it, or it is built in."""
    if config.reward.name == NO_REWARD:
        return False
    if config.reward.components or config.reward.name == JUDGE or lookup(replay.options.overrides, "reward.name"):
        return True  # keys that these rewards require are checked at loading
    builtin = config.reward.name == "auto" or known_rewards.is_builtin(config.reward.name)
    return bool(replay.run.config) and not _saved_custom(replay) and builtin


def _reward_hint(replay: Replay) -> str:
    if custom := _saved_custom(replay):
        return visible(f" (the run had {custom.get('path')}:{custom.get('name')})")
    return " (the run had no reward: reward.name=none)" if lookup(replay.run.config, "reward.name") == NO_REWARD else ""


def _saved_custom(replay: Replay) -> Mapping[str, object]:
    """The saved configuration of the run's custom reward function; empty if there was none."""
    custom = lookup(replay.run.config, "reward.custom_reward_function")
    return custom if isinstance(custom, dict) and custom.get("path") else {}


def _score(replay: Replay, config: RunConfig, rewards: Mapping[str, Reward]) -> list[Scored]:
    with ExitStack() as stack:
        for reward in rewards.values():
            stack.callback(close_reward, reward)
        stack.enter_context(fewer_collections())
        text = _chat_text(replay, config)
        return run_loop(score_all(replay.run.rollouts(COLUMNS), rewards, text, config.reward.include_tool_text))


def _has_tokens(replay: Replay) -> bool:
    return IMPORTED_FROM not in replay.run.provenance


def _chat_text(replay: Replay, config: RunConfig) -> ChatText:
    if not _has_tokens(replay):
        return lambda token_ids: ""  # imported rollouts have no tokens
    tokenizer = replay.run.tokenizer(replay.options.tokenizer)
    return cached_text(ChatFormat(tokenizer, template_kwargs=config.data.apply_chat_template_kwargs).text)


def _summary(replay: Replay, config: RunConfig, scored: Sequence[Scored], names: Sequence[str]) -> Iterator[str]:
    yield f"{len(scored):,} rollouts scored with {', '.join(names)}"
    for name in names:
        if num_failed := sum(name in row.failures for row in scored):
            yield f"{name} failed on {num_failed:,} of them"
    if other := sum(row.same_text is False for row in scored):
        yield f"the text of {other:,} rollouts differs from the text scored in training"
    if unknown := sum(row.from_messages for row in scored):
        yield f"{unknown:,} rollouts have no tokens: the text of their messages is scored, without tool-call markup"
    if _has_tokens(replay) and (note := replay.run.tokenizer_note(replay.options.tokenizer)):
        yield note
    if "reward.guards.injections" in dropped_values(replay.run.config) and not config.reward.guards.injections:
        yield "reward.guards.injections of the run is not used: give it on the command line if you need it"
    kwargs = _saved_custom(replay).get("reward_kwargs")
    if kwargs and not config.reward.custom_reward_function.reward_kwargs:
        yield f"reward.custom_reward_function.reward_kwargs of the run is not used: {kwargs}"
