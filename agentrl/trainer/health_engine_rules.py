"""What is not healthy between engine and backend: rules as those of health_rules.

| rule      | fires when                                                                                            |
|-----------|-------------------------------------------------------------------------------------------------------|
| mismatch  | KL between engine and backend on the same weights above 0.01 nats a token, over 5 steps: answers of   |
|           | 100 tokens are then wrongly weighted by a factor of e. bfloat16 alone gives 1e-4 to 1e-3              |
| probe     | right after publishing, engine and backend 0.05 nats apart on average: more than bfloat16 gives       |
| requeued  | over 5 steps, groups begun again for their age, beyond those over_sampling plans, above 10 % of those |
|           | trained on: a tenth of the engine's work comes to nothing                                             |
| replay    | under rollout.routed_experts the experts of 10 % of the tokens, or more, are not known                |
| restarts  | a server died or hung in this step                                                                    |
| cache     | half of what later turns begin with is computed anew, over 5 steps with 10,000 such tokens or more    |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

from agentrl.trainer.health_history import NUM_RECENT, History, values

MAX_MISMATCH, MAX_PROBE, MAX_REQUEUED = 0.01, 0.05, 0.1
MIN_REPLAYED, MIN_CACHED, MIN_LATER_TOKENS = 0.9, 0.5, 10_000


def mismatch(history: History) -> str | None:
    """The engine samples from another distribution than the backend computes."""
    found = values(history.recent, "mismatch/current/k3")[-NUM_RECENT:]  # stale steps may have no such tokens
    if len(found) < NUM_RECENT or (apart := fmean(found)) <= MAX_MISMATCH:
        return None
    return (
        f"engine and backend are {apart:.2g} nats a token apart (k3), above {MAX_MISMATCH}: number types or "
        "kernels differ (rollout.dtype, rollout.sglang.server_args); algorithm.rollout_correction corrects for it"
    )


def probe(history: History) -> str | None:
    """The weights that were published are not quite the policy's."""
    if not (apart := history.now.get("publish/probe_mean_diff", 0.0)) > MAX_PROBE:
        return None
    return (
        f"after publishing, engine and backend are {apart:.2g} nats a token apart, above {MAX_PROBE}: are all weights "
        "published, is the server quantized, does rollout.dtype fit?"
    )


def requeued(history: History) -> str | None:
    """Groups are thrown away for their age."""
    share = _mean(history, "staleness/requeued_share")
    if share is None or share <= MAX_REQUEUED + history.over_sampling:
        return None
    return (
        f"{share:.0%} as many groups are begun again for their age as are trained on: raise "
        "trainer.max_staleness, or bound the slowest (rollout.rollout_timeout_s, data.max_response_length)"
    )


def replay(history: History) -> str | None:
    """Experts that were asked for are lost on the way."""
    if (share := history.now.get("actor/replayed_share", 1.0)) > MIN_REPLAYED:
        return None
    return (
        f"only {share:.0%} of the tokens are trained with the experts that sampled them: agent loops must hand them on"
        " (trajectory.keep_routed_experts), and saved rollouts must hold them"
    )


def restarts(history: History) -> str | None:
    """Servers that do not last."""
    if not (count := history.now.get("engine/num_restarts", 0.0)):
        return None
    return f"{count:.0f} SGLang server(s) died or hung and were started again: their logs are in the run's folder"


def cache(history: History) -> str | None:
    """The KV of conversations is gone before they go on."""
    share = _mean(history, "engine/later_cached_share")
    num_tokens = sum(values(history.latest(NUM_RECENT), "engine/later_prompt_tokens"))
    if share is None or num_tokens < MIN_LATER_TOKENS or share >= MIN_CACHED:
        return None
    return (
        f"only {share:.0%} of what later turns begin with is in the engine's cache: give it more memory "
        "(rollout.sglang.server_args.mem_fraction_static), or lower trainer.max_concurrent_rollouts"
    )


def _mean(history: History, name: str) -> float | None:
    """Of the latest 5 steps; None where not each has it."""
    found = values(history.latest(NUM_RECENT), name)
    return fmean(found) if len(found) == NUM_RECENT else None


ENGINE_RULES: Mapping[str, Callable[[History], str | None]] = {
    rule.__name__: rule for rule in (mismatch, probe, requeued, replay, restarts, cache)
}
"""Name -> what it has to say, or None."""
