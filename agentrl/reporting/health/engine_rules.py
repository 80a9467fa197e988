"""Health rules for engine and backend; see `rules`.

| rule      | fires when                                                                                            |
|-----------|-------------------------------------------------------------------------------------------------------|
| mismatch  | the KL between engine and backend, both with the same weights, is above 0.01 nats per token (mean of  |
|           | 5 steps). At a KL of 0.01, the log-ratios of 100 tokens sum to 1 on average: a factor of e in the     |
|           | importance ratio. bfloat16 alone causes a KL of 1e-4 to 1e-3                                          |
| probe     | right after publishing, engine and backend differ by more than 0.05 nats per token on average; the    |
|           | difference caused by bfloat16 is smaller                                                              |
| requeued  | over 5 steps, the share of groups requeued for staleness is more than 10 percentage points above the  |
|           | share that over_sampling is expected to requeue                                                       |
| replay    | with rollout.routed_experts, 10 % or more of the tokens have no recorded experts                      |
| restarts  | a server died or hung in this step                                                                    |
| cache     | over 5 steps, turns recompute more than half of the context tokens that their previous turn already   |
|           | contained; checked only if there are at least 10,000 such tokens                                      |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

from agentrl.reporting.health.history import NUM_RECENT, History, values
from agentrl.telemetry.metrics.collection import REQUEUED_SHARE
from agentrl.telemetry.metrics.engine import LATER_CACHED_SHARE, LATER_PROMPT_TOKENS, NUM_RESTARTS, PROBE_MEAN
from agentrl.telemetry.metrics.off_policy import CURRENT_K3
from agentrl.telemetry.metrics.policy import REPLAYED

MIN_LATER_TOKENS = 10_000


def mismatch(history: History) -> str | None:
    """The engine samples from a different distribution than the backend computes."""
    # a step lacks this metric if only older weights sampled its tokens
    found = values(history.recent, CURRENT_K3.name)[-NUM_RECENT:]
    if len(found) < NUM_RECENT or (difference := fmean(found)) <= CURRENT_K3.highest:
        return None
    return (
        f"engine and backend differ by {difference:.2g} nats per token (k3), above {CURRENT_K3.highest}: data types "
        "or kernels differ (rollout.dtype, rollout.sglang.server_args); algorithm.rollout_correction corrects for it"
    )


def probe(history: History) -> str | None:
    """The engine's weights after publishing differ from the policy's weights."""
    if not (difference := history.now.get(PROBE_MEAN.name, 0.0)) > PROBE_MEAN.highest:
        return None
    return (
        f"after publishing, engine and backend differ by {difference:.2g} nats per token, above {PROBE_MEAN.highest}: "
        "check that all weights are published, that the server is not quantized, and rollout.dtype"
    )


def requeued(history: History) -> str | None:
    """Too many groups are requeued for staleness."""
    share = _mean(history, REQUEUED_SHARE.name)
    if share is None or share <= REQUEUED_SHARE.highest + history.over_sampling:
        return None
    return (
        f"too many groups are requeued for staleness ({share:.0%} of the trained groups): raise trainer.max_staleness, "
        "or limit long rollouts (rollout.rollout_timeout_s, data.max_response_length)"
    )


def replay(history: History) -> str | None:
    """Routed experts of sampled tokens are missing."""
    if (share := history.now.get(REPLAYED.name, 1.0)) > REPLAYED.lowest:
        return None
    return (
        f"only {share:.0%} of the tokens are trained with the experts that sampled them: agent loops must record"
        " experts (trajectory.keep_routed_experts), and saved rollouts must contain them"
    )


def restarts(history: History) -> str | None:
    """Servers died or hung."""
    if (count := history.now.get(NUM_RESTARTS.name, 0.0)) <= NUM_RESTARTS.highest:
        return None
    return f"{count:.0f} SGLang server(s) crashed or hung and were restarted: see their logs in the run folder"


def cache(history: History) -> str | None:
    """The engine evicts conversations from its KV cache before their next turn."""
    share = _mean(history, LATER_CACHED_SHARE.name)
    num_tokens = sum(values(history.latest(NUM_RECENT), LATER_PROMPT_TOKENS.name))
    if share is None or num_tokens < MIN_LATER_TOKENS or share >= LATER_CACHED_SHARE.lowest:
        return None
    return (
        f"only {share:.0%} of the tokens of earlier turns are still in the engine's KV cache: increase its memory "
        "(rollout.sglang.server_args.mem_fraction_static), or decrease trainer.max_concurrent_rollouts"
    )


def _mean(history: History, name: str) -> float | None:
    """Return the mean over the latest 5 steps; None if a step lacks the metric."""
    found = values(history.latest(NUM_RECENT), name)
    return fmean(found) if len(found) == NUM_RECENT else None


ENGINE_RULES: Mapping[str, Callable[[History], str | None]] = {
    rule.__name__: rule for rule in (mismatch, probe, requeued, replay, restarts, cache)
}
"""Maps a rule's name to its function, which returns a warning or None."""
