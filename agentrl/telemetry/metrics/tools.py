"""Metrics of resources that tools share: threads, event loops, sandboxes and MCP servers."""

from __future__ import annotations

from agentrl.telemetry.metrics.base import Metric

ABANDONED = Metric(
    "tools/abandoned_calls", "calls", "calls that still hang after their timeout, at the end of the step"
)
REPLACED_LOOPS = Metric("tools/replaced_loops", "", "tool event loops replaced because a call blocked the loop")
STARTED = Metric("tools/sandboxes_started", "sandboxes", "sandboxes that were started")
ENDED = Metric("tools/sandboxes_ended", "sandboxes", "sandboxes that were ended by code which the model wrote")
FAILED = Metric("tools/sandboxes_failed", "sandboxes", "sandboxes that did not start, or that the service lost")
SANDBOX_S = Metric("tools/sandbox_s", "s", "seconds that sandboxes ran, summed over all")
WAIT_S = Metric("tools/sandbox_wait_s", "s", "seconds that rollouts waited for a sandbox, summed over all")
COST = Metric(
    "tools/sandbox_cost_usd",
    "USD",
    "price of all sandboxes since the run started or resumed, validations included; only kinds of sandbox with a price",
)
MCP_OPENED = Metric("tools/mcp_sessions_opened", "", "opened sessions of MCP servers")
MCP_REOPENED = Metric("tools/mcp_sessions_reopened", "", "opened sessions that replaced a lost session")
MCP_CALLS = Metric("tools/mcp_calls", "calls", "calls of tools of MCP servers")
MCP_CALL_S = Metric("tools/mcp_call_s", "s", "duration of calls of MCP tools, summed over all")
MCP_OPEN_S = Metric("tools/mcp_open_s", "s", "seconds to open sessions, summed over all")
MCP_WAIT_S = Metric(
    "tools/mcp_wait_s", "s", "seconds that calls waited for a free session or the rate limit, summed over all"
)
