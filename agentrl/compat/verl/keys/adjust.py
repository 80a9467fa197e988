"""Adjusts translated values that depend on several verl keys."""

from __future__ import annotations

from pathlib import Path

from agentrl.compat.verl.keys.algorithm import adjust_algorithm
from agentrl.compat.verl.keys.correction import adjust_correction
from agentrl.compat.verl.keys.critic import adjust_critic
from agentrl.compat.verl.keys.draft import Draft, whole
from agentrl.compat.verl.keys.megatron import adjust_megatron
from agentrl.compat.verl.keys.names import adjust_names, estimator_of
from agentrl.compat.verl.keys.reward import adjust_reward
from agentrl.compat.verl.keys.rows import Mapped, truth
from agentrl.compat.verl.keys.servers import server_options
from agentrl.compat.verl.keys.trainer import TRAINER, missing_loggers
from agentrl.config.presets import PRESETS
from agentrl.config.reward import NO_REWARD

_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"
_DEFAULTS = {row.key: row.default for row in TRAINER if isinstance(row, Mapped)}
_COMPARING = {preset.adv_estimator for preset in PRESETS.values() if preset.compares and preset.feed == "rollouts"}
_TOOLS = ("rollout.multi_turn.tool_config_path", "rollout.multi_turn.function_tool_path")


def adjust(draft: Draft) -> None:
    """Make the values consistent with each other, as verl does."""
    for rule in (
        *(_validation, _turns, _agent_loop, _engine, server_options, _batches, _schedule, _clip, adjust_correction),
        *(adjust_algorithm, adjust_names, adjust_critic, adjust_megatron, adjust_reward),
        *(_groups_of_one, _folder, _saving, _loggers),
    ):
        rule(draft)


def adjust_generation(draft: Draft) -> None:
    """Make the values of a generation command consistent with each other."""
    for rule in (_turns, _agent_loop, _engine, server_options, _greedy, adjust_reward, _unscored, _rollouts_folder):
        rule(draft)


def _greedy(draft: Draft) -> None:
    """Set greedy decoding for temperature 0 or do_sample=False, and drop top_p and top_k."""
    do_sample = (draft.given.get(key) for key in (f"{_ROLLOUT}.do_sample", "rollout.do_sample"))
    if any(truth(value) is False for value in do_sample):
        draft.values["rollout.temperature"] = 0.0
    if _as_float(draft.values.get("rollout.temperature", 1.0)) == 0.0:
        for option in ("top_p", "top_k"):
            draft.values.pop(f"rollout.{option}", None)


def _unscored(draft: Draft) -> None:
    """Generate without scores, as verl does, unless a reward function is given."""
    custom = draft.values.get("reward.custom_reward_function.path")
    draft.values["trainer.mode"] = "rollout_only"
    if custom is None:
        draft.values.pop("reward.custom_reward_function.name", None)
        draft.values.setdefault("reward.name", NO_REWARD)


def _rollouts_folder(draft: Draft) -> None:
    """Choose the run folder: next to the output file, with the name of this file without suffix."""
    output = draft.values.get("data.output_path")
    if output is not None and not _is_given(draft, "trainer.default_local_dir"):
        draft.values["trainer.default_local_dir"] = str(Path(str(output)).with_suffix(""))
        draft.values.setdefault("trainer.resume_mode", "auto")
    elif not draft.values.get("trainer.default_local_dir"):
        _folder(draft)


def _groups_of_one(draft: Draft) -> None:
    if draft.number("rollout.n") == 1 and estimator_of(draft) in _COMPARING:
        draft.notices.append(
            f"'{_ROLLOUT}.n=1' has no other rollouts to compare with: a group of one has advantage 0 (verl"
            " would train on its raw "
            f"score), so only a KL or entropy term can move the policy. Set '{_ROLLOUT}.n' to 2 or more"
        )


def _validation(draft: Draft) -> None:
    """Set validation sampling: greedy exactly if the temperature is 0, because verl's agent loops ignore do_sample."""
    prefix = "rollout.val_kwargs"
    greedy = _as_float(draft.values.get(f"{prefix}.temperature", 0.0)) == 0.0
    draft.values[f"{prefix}.do_sample"] = not greedy
    if not greedy:
        return
    for option in ("temperature", "top_p", "top_k"):
        draft.values.pop(f"{prefix}.{option}", None)
    if draft.number(f"{prefix}.n") > 1:
        draft.values[f"{prefix}.n"] = 1
        draft.notices.append(
            f"'{_ROLLOUT}.val_kwargs.n' is set to 1: greedy rollouts of one task are identical, "
            f"and '{_ROLLOUT}.val_kwargs.temperature' is 0"
        )


def _turns(draft: Draft) -> None:
    """Convert turn limits. With `max_user_turns=N` (answers of tools or a user), N + 1 model turns are allowed."""
    limits = {f"{_ROLLOUT}.multi_turn.max_assistant_turns": 0, f"{_ROLLOUT}.multi_turn.max_user_turns": 1}
    given = [turns + extra for key, extra in limits.items() if (turns := whole(draft.given.get(key), 0)) > 0]
    if given:
        draft.values["rollout.multi_turn.max_assistant_turns"] = min(given)


def _agent_loop(draft: Draft) -> None:
    multi_turn = truth(draft.given.get(f"{_ROLLOUT}.multi_turn.enable"))
    if multi_turn and any(map(draft.values.get, _TOOLS)) and not _is_given(draft, "rollout.agent.default_agent_loop"):
        draft.values["rollout.agent.default_agent_loop"] = "tool_agent"
        draft.notices.append(
            f"rows without an agent loop use tool_agent, because '{_ROLLOUT}.multi_turn.enable' and tools are set; "
            f"to change this, set '{_ROLLOUT}.agent.default_agent_loop'"
        )


def _batches(draft: Draft) -> None:
    """Set the default of use_dynamic_bsz: false if a micro-batch size in samples is given, else true.

    If the user gives use_dynamic_bsz=True, drop the micro-batch size in samples.
    """
    dynamic, samples = "actor.use_dynamic_bsz", "actor.ppo_micro_batch_size_per_gpu"
    if dynamic not in draft.values:
        draft.values[dynamic] = samples not in draft.values
    elif truth(draft.values[dynamic]) and draft.values.pop(samples, None) is not None:
        draft.notices.append(
            f"'{draft.source_keys[samples]}' has no effect with '{_ACTOR}.use_dynamic_bsz=True', as in verl: "
            f"'{_ACTOR}.ppo_max_token_len_per_gpu' limits a micro-batch"
        )


def _schedule(draft: Draft) -> None:
    """Convert the warm-up from verl's steps to updates. A given number of steps takes precedence over a ratio."""
    for part, section in (("actor", f"{_ACTOR}.optim"), ("critic", "critic.optim")):
        key = f"{part}.optim.lr_warmup_steps"
        if draft.source_keys.get(key) == f"{section}.lr_warmup_steps" and (steps := draft.number(key, 0)):
            draft.values.pop(f"{key}_ratio", None)
            draft.values[key] = steps * _updates_per_step(draft, part)


def _updates_per_step(draft: Draft, part: str) -> int:
    batch = draft.number("data.train_batch_size")
    mini_batch = draft.number(f"{part}.ppo_mini_batch_size", draft.number("actor.ppo_mini_batch_size", batch))
    epochs = draft.number(f"{part}.ppo_epochs", draft.number("actor.ppo_epochs"))
    return epochs * max(1, batch // max(1, mini_batch))


def _clip(draft: Draft) -> None:
    sides = [f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high"]
    if draft.given.get(f"{_ACTOR}.clip_ratio", 0.2) != 0.2 and not any(side in draft.given for side in sides):
        draft.values.pop("actor.clip_ratio", None)
        draft.notices.append(
            f"'{_ACTOR}.clip_ratio' has no effect with the defaults of '{sides[0]}' and '{sides[1]}', 0.2, "
            "as in verl: set these keys instead"
        )


def _engine(draft: Draft) -> None:
    """Drop verl's default rollout precision for the scripted engine, which has no model."""
    if draft.values.get("rollout.engine") == "scripted" and not _is_given(draft, "rollout.dtype"):
        draft.values.pop("rollout.dtype", None)


def _folder(draft: Draft) -> None:
    for name in ("trainer.project_name", "trainer.experiment_name"):
        draft.values.setdefault(name, _DEFAULTS[name])  # also if the user gave null, because the folder needs a name
    if not draft.values.get("trainer.default_local_dir") and not _is_given(draft, "trainer.resume_mode"):
        draft.values["trainer.resume_mode"] = "disable"  # a new run in a new folder


def _saving(draft: Draft) -> None:
    """With save_freq, save checkpoints as verl does: only every save_freq steps. By default, keep all checkpoints."""
    if draft.number("trainer.save_freq", 0):
        draft.values["trainer.save_interval_s"] = None
        draft.values.setdefault("trainer.max_checkpoints_to_keep", None)


def _loggers(draft: Draft) -> None:
    if missing := missing_loggers(draft.given.get("trainer.logger") or []):
        draft.notices.append(
            f"'trainer.logger': not supported: {', '.join(missing)}; "
            f"metrics go to {', '.join(_names(draft.values['trainer.logger']))}"
        )


def _names(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _is_given(draft: Draft, target: str) -> bool:
    return draft.source_keys.get(target) in draft.given


def _as_float(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 1.0  # not a number: refused later by the type check
