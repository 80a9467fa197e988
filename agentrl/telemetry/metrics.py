"""Every metric that a run logs: its name, unit and meaning."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Metric(NamedTuple):
    """One metric or a family of metrics: `<word>` in the name matches any text."""

    name: str
    unit: str
    meaning: str


METRICS = tuple(
    Metric(*row)
    for row in (
        ("step", "", "training step; 0 is before the first update"),
        ("reward/mean", "score", "mean score of the step's rollouts"),
        ("reward/std", "score", "standard deviation of these scores"),
        ("reward/<name>", "score", "mean of another number that the reward returned"),
        ("reward/guard/<name>", "share", "rollouts in which this guard was raised"),
        ("success", "share", "rollouts whose score reaches `reward.success_threshold`"),
        ("success_of_all", "share", "the same, of all rollouts: those that were dropped count as no success"),
        ("success/<data_source>", "share", "the same, for the rows of one data source"),
        ("groups/zero_variance", "share", "groups whose rewards are all equal, so that no advantage follows"),
        ("response_length/mean", "tokens", "tokens after the prompt, all trajectories of a rollout together"),
        ("response_length/max", "tokens", "the longest of these"),
        ("num_turns/mean", "turns", "model turns per rollout"),
        ("num_turns/max", "turns", "most model turns of a rollout"),
        ("rollout_s/mean", "s", "duration of a rollout, scoring included"),
        ("rollout_s/max", "s", "the longest of these"),
        ("rollouts/failed", "share", "rollouts whose agent loop raised an error"),
        ("rollouts/infra_failed", "share", "rollouts that failed for reasons outside the policy"),
        ("rollouts/dropped", "share", "rollouts that are one of these or both, and so count in no other metric"),
        ("rollouts/num_dropped", "rollouts", "how many were dropped"),
        ("stop/<reason>", "share", "rollouts that ended for this reason (see Stop reasons)"),
        ("tool_calls/mean", "calls", "tool calls per rollout"),
        ("tool_calls/share", "share", "rollouts with at least one call that ended `ok`"),
        ("tool/<tool>/calls", "calls", "calls of this tool; `unknown` counts names that reached no tool"),
        ("tool/<tool>/<outcome>", "calls", "calls of this tool with this outcome (see Outcomes of tool calls)"),
        ("tool/<tool>/p50_s", "s", "median duration of a call"),
        ("tool/<tool>/p95_s", "s", "95th percentile of the duration of a call"),
        ("tool/<tool>/tokens_per_call", "tokens", "mean length of an answer"),
        ("val/<metric>", "", "the same metric, of the validation rollouts"),
        ("val/num_tasks", "tasks", "validation tasks"),
        ("val/loss", "", "reward models: loss on the validation rows"),
        ("val/mse", "", "reward models: mean squared error of the predicted label"),
        ("val/rank_correlation", "", "reward models: Spearman correlation of scores and labels"),
        ("actor/loss", "", "the policy loss"),
        ("actor/grad_norm", "", "norm of the gradient before clipping"),
        ("actor/lr", "", "learning rate"),
        ("actor/entropy", "nats", "mean entropy of the policy at the trained tokens"),
        ("actor/ppo_kl", "nats", "mean of log-prob at sampling time minus the current log-prob, over trained tokens"),
        ("actor/pg_clipfrac", "share", "trained tokens whose ratio was clipped"),
        ("actor/pg_clipfrac_lower", "share", "trained tokens clipped at the lower bound for negative advantages"),
        ("actor/kl_loss", "nats", "KL to the reference policy, as added to the loss"),
        ("actor/num_tokens", "tokens", "trained tokens"),
        ("actor/num_micro_batches", "", "micro-batches of the step"),
        ("actor/updates", "", "optimizer steps in this training step"),
        ("actor/skipped_updates", "", "optimizer steps skipped: gradient not finite, or no trained token"),
        ("actor/accuracy", "share", "preference losses: pairs whose chosen answer has the higher implicit reward"),
        ("actor/chosen_rewards", "", "preference losses: implicit reward of the chosen answers"),
        ("actor/rejected_rewards", "", "preference losses: implicit reward of the rejected answers"),
        ("actor/margin", "", "preference losses: difference of the two"),
        ("actor/replayed_share", "share", "tokens whose recorded experts were replayed (`rollout.routed_experts`)"),
        ("actor/<name>", "", "a metric that the chosen loss returns, such as `ratio_mean`"),
        ("critic/vf_loss", "", "loss of the critic"),
        ("critic/vf_explained_var", "", "share of the returns' variance that the values explain"),
        ("critic/grad_norm", "", "norm of the critic's gradient before clipping"),
        ("critic/lr", "", "learning rate of the critic"),
        ("critic/updates", "", "optimizer steps of the critic"),
        ("critic/<name>", "", "further metrics of the critic, named as the actor's"),
        ("kl/reward_mean", "nats", "KL to the reference policy that the reward was reduced by"),
        ("kl/reward_coef", "", "coefficient of this KL"),
        ("kept/samples", "share", "samples that the loss reads, after filters"),
        ("correction/weight_mean", "", "mean importance weight before normalisation"),
        ("correction/weight_max", "", "largest importance weight"),
        ("correction/weight_min", "", "smallest importance weight"),
        ("correction/ess", "share", "effective sample size of the importance weights"),
        ("correction/truncated", "share", "importance weights cut at the bound"),
        ("correction/masked", "share", "importance weights outside the bounds, set to 0"),
        ("correction/rejected_tokens", "share", "tokens left out by rejection"),
        ("correction/rejected_rollouts", "share", "rollouts left out by rejection"),
        ("mismatch/mean", "nats", "mean difference of log-probs between engine and backend, absolute"),
        ("mismatch/max", "nats", "largest of these differences"),
        ("mismatch/k3", "nats", "k3 estimate of KL(engine, backend) per token"),
        ("mismatch/share_above", "share", "tokens whose difference is above 0.1"),
        ("mismatch/ratio_mean", "", "mean of backend probability over engine probability"),
        ("mismatch/ess", "share", "effective sample size of these ratios"),
        ("mismatch/current/<name>", "", "the same, of tokens that the current policy version sampled"),
        ("mismatch/older/<name>", "", "the same, of tokens that older policy versions sampled"),
        ("staleness/mean", "versions", "age of the groups trained on"),
        ("staleness/max", "versions", "age of the oldest group"),
        ("staleness/<age>", "share", "groups of this age"),
        ("staleness/tokens_lag_<age>", "share", "sampled tokens of valid rollouts, by the age of their weights"),
        ("staleness/partial", "share", "rollouts sampled by more than one policy version"),
        ("staleness/in_flight", "rollouts", "rollouts under way at the end of the step"),
        ("staleness/requeued", "groups", "groups started again because they grew too old"),
        ("staleness/requeued_share", "share", "the same, of the groups of the step"),
        ("staleness/engine_idle", "share", "time in which no rollout was under way"),
        ("staleness/engine_idle_s", "s", "the same, in seconds"),
        ("sampling/drawn", "groups", "groups rolled out for this step"),
        ("sampling/filtered", "groups", "groups left out by `algorithm.filter_groups`"),
        ("sampling/rounds", "", "groups rolled out, as a multiple of the step's size"),
        ("sampling/<reason>", "share", "groups left out for this reason"),
        ("sampling/reward_mean", "score", "mean score of all groups, the ones left out included"),
        ("curriculum/measured_rows", "rows", "rows whose pass rate is known"),
        ("curriculum/pass_rate", "share", "mean pass rate of these rows"),
        ("curriculum/drawn_share", "share", "tasks drawn, of those whose turn it was"),
        ("online/<name>", "tasks", "tasks added by rollouts: waiting, added, duplicates, bad, refused, dropped"),
        ("reward_model/<name>", "", "a reward model in training: accuracy, auc, ece, brier, loss, drift, …"),
        ("engine/prompt_tokens", "tokens", "tokens of all requests' contexts"),
        ("engine/cached_tokens", "tokens", "of these, tokens whose KV was cached"),
        ("engine/cached_share", "share", "cached_tokens / prompt_tokens"),
        ("engine/forwarded_tokens", "tokens", "tokens that the engine computed; varies with timing"),
        ("engine/sampled_tokens", "tokens", "tokens that were sampled"),
        ("engine/decode_steps", "", "forward passes that sampled tokens"),
        ("engine/prefill_steps", "", "forward passes that read contexts"),
        ("engine/evicted_sessions", "", "conversations whose KV was dropped to make room"),
        ("engine/later_prompt_tokens", "tokens", "SGLang: context tokens of second and later turns"),
        ("engine/later_cached_tokens", "tokens", "SGLang: of these, tokens that were cached"),
        ("engine/later_cached_share", "share", "SGLang: later_cached_tokens / later_prompt_tokens"),
        ("engine/num_retried", "", "SGLang: requests sent again"),
        ("engine/num_restarts", "", "SGLang: servers restarted"),
        ("engine/replicas_ready", "", "SGLang: servers in service at the end of the step"),
        ("publish/pause_s", "s", "time until the engine paused for new weights"),
        ("publish/transfer_s", "s", "time to send the weights"),
        ("publish/<part>_s", "s", "time of another part of an update of the engine's weights"),
        ("publish/num_bytes", "bytes", "size of the weights sent"),
        ("publish/probe_max_diff", "nats", "largest log-prob difference between engine and backend after an update"),
        ("publish/probe_mean_diff", "nats", "mean of these differences"),
        ("perf/tokens_per_s", "tokens/s", "tokens of the step's rollouts, prompts included, per second"),
        ("timing_s/step", "s", "duration of the step"),
        ("timing_s/collect", "s", "waiting for rollouts, at staleness 0"),
        ("timing_s/wait_rollouts", "s", "waiting for rollouts, with staleness"),
        ("timing_s/score", "s", "reference log-probs and values"),
        ("timing_s/kl_controller", "s", "update of the coefficient of the KL penalty"),
        ("timing_s/critic", "s", "updates of the critic"),
        ("timing_s/learn", "s", "updates of the policy, or of the reward model that is trained alone"),
        ("timing_s/reference_sync", "s", "copying the policy to the reference"),
        ("timing_s/reward_model", "s", "evaluation and updates of the online reward model"),
        ("timing_s/publish", "s", "updates of the engine's weights"),
        ("timing_s/gpu_handover", "s", "`rollout.sglang.colocate`: the engine releases its GPU memory"),
        ("timing_s/gpu_return", "s", "`rollout.sglang.colocate`: the engine gets its GPU memory back"),
        ("timing_s/store", "s", "saving rollouts"),
        ("timing_s/validate", "s", "validation"),
        ("timing_s/<part>", "s", "duration of another part of the step"),
    )
)


def find_metric(name: str) -> Metric | None:
    """Return the most specific entry that matches a metric's name, or None."""
    found = next((metric for pattern, metric in _patterns() if pattern.fullmatch(name)), None)
    if found and found.name == "val/<metric>":
        inner = find_metric(name.removeprefix("val/"))
        return inner and inner._replace(name=name)
    return found


@cache
def _patterns() -> list[tuple[re.Pattern[str], Metric]]:
    """Return the entries with fewest `<word>` parts first, longer names first among equals."""
    ranked = sorted(METRICS, key=lambda metric: (metric.name.count("<"), -len(metric.name)))
    return [(re.compile(re.sub("<[a-z_]+>", ".+", metric.name)), metric) for metric in ranked]
