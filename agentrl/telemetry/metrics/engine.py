"""Metrics of the engine, and of publishing weights to it."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Line, Metric, Range, Row

PROMPT_TOKENS = Metric("engine/prompt_tokens", "tokens", "context tokens of all requests")
CACHED_TOKENS = Metric("engine/cached_tokens", "tokens", "context tokens whose KV was cached")
CACHED_SHARE = Metric(
    "engine/cached_share",
    "share",
    "context tokens whose KV was cached, of all context tokens",
    console=Row("engine", "{} of the context cached"),
    report=Line("Cached context", "all turns"),
)
FORWARDED_TOKENS = Metric("engine/forwarded_tokens", "tokens", "tokens that the engine computed; varies with timing")
SAMPLED_TOKENS = Metric("engine/sampled_tokens", "tokens", "tokens that were sampled")
DECODE_STEPS = Metric("engine/decode_steps", "", "forward passes that sampled tokens")
PREFILL_STEPS = Metric("engine/prefill_steps", "", "forward passes that prefill contexts")
EVICTED_SESSIONS = Metric("engine/evicted_sessions", "", "conversations evicted from the KV cache")
LATER_PROMPT_TOKENS = Metric(
    "engine/later_prompt_tokens", "tokens", "SGLang: context tokens that the previous turn already contained"
)
LATER_CACHED_TOKENS = Metric(
    "engine/later_cached_tokens", "tokens", "SGLang: tokens among `engine/later_prompt_tokens` whose KV was cached"
)
LATER_CACHED_SHARE = Metric(
    "engine/later_cached_share",
    "share",
    "SGLang: share of `engine/later_prompt_tokens` whose KV was cached",
    healthy=Range(lowest=0.5),
    report=Line("Cached context", "later turns"),
)
NUM_RETRIED = Metric("engine/num_retried", "", "SGLang: requests retried")
NUM_RESTARTS = Metric("engine/num_restarts", "", "SGLang: servers restarted", healthy=Range(0, 0))
REPLICAS_READY = Metric("engine/replicas_ready", "", "SGLang: servers in service at the end of the step")
WEIGHT_SENT_BYTES = Metric(
    "engine/weight_sent_bytes", "bytes", "weight_sync=delta: size of the requests with weights, summed over all servers"
)
WEIGHT_COMPARE_S = Metric(
    "engine/weight_compare_s", "s", "weight_sync=delta: time to compare new weights with the weights sent last"
)
WEIGHT_CHANGED_SHARE = Metric(
    "engine/weight_changed_share", "share", "weight_sync=delta: values that differ from the last weights sent"
)
PAUSE_S = Metric("publish/pause_s", "s", "time until the engine paused for new weights")
TRANSFER_S = Metric("publish/transfer_s", "s", "time to send the weights")
PROBE_S = Metric("publish/probe_s", "s", "time to compare log-probs of engine and backend after an update")
NUM_BYTES = Metric("publish/num_bytes", "bytes", "size of the weights that are published")
PROBE_MAX = Metric(
    "publish/probe_max_diff", "nats", "largest log-prob difference between engine and backend after an update"
)
PROBE_MEAN = Metric(
    "publish/probe_mean_diff",
    "nats",
    "mean log-prob difference between engine and backend after an update",
    healthy=Range(highest=0.05),
    report=Line("Mismatch of engine and trainer", "after syncing weights, mean"),
)
