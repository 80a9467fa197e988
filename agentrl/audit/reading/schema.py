"""Schema of a file of rollouts, defined independently of the writer."""

from __future__ import annotations

from collections.abc import Mapping

LEAVES: Mapping[str, str] = {
    "step": "int64",
    "split": "string",
    "rollout": "int64",
    "messages": "string",
    "ground_truth": "string",
    "data_source": "string",
    "index": "int64",
    "uid": "string",
    "agent_name": "string",
    "tools_kwargs": "string",
    "interaction_kwargs": "string",
    "extra_info": "string",
    "stop": "string",
    "rewards.name": "string",
    "rewards.value": "double",
    "turn_rewards.trajectory": "int64",
    "turn_rewards.segment": "int64",
    "turn_rewards.name": "string",
    "turn_rewards.value": "double",
    "turn_rewards.observation_key": "string",
    "tool_calls.name": "string",
    "tool_calls.arguments": "string",
    "tool_calls.result": "string",
    "tool_calls.outcome": "string",
    "tool_calls.duration_s": "double",
    "tool_calls.num_tokens": "int64",
    "tool_calls.reward": "double",
    "tool_calls.turn": "int64",
    "tool_calls.trajectory": "int64",
    "tool_calls.started_s": "double",
    "tool_rewards.name": "string",
    "tool_rewards.value": "double",
    "error": "string",
    "infra_failed": "bool",
    "seed": "uint64",
    "duration_s": "double",
    "scored_text_sha256": "string",
    "reward": "double",
    "trajectories.messages": "string",
    "trajectories.segments.author": "string",
    "trajectories.segments.token_ids": "int32",
    "trajectories.segments.logprobs": "double",
    "trajectories.segments.policy_versions.version": "int64",
    "trajectories.segments.policy_versions.num_tokens": "int64",
    "trajectories.segments.temperature": "double",
    "trajectories.segments.media": "string",
    "trajectories.advantages": "double",
    "trajectories.old_logprobs": "float",
    "trajectories.ref_logprobs": "float",
    "trajectories.values": "float",
    "trajectories.kl_coef": "double",
    "trajectories.weight": "double",
    "excluded": "string",
    "operations.kind": "string",
    "operations.trajectory": "int64",
    "operations.num_before": "int64",
    "operations.first_segment": "int64",
    "operations.num_segments": "int64",
    "operations.first_message": "int64",
    "operations.num_messages": "int64",
    "operations.num_calls": "int64",
    "operations.detail": "string",
    "facts": "string",
    "seals": "uint32",
}
"""Leaves (columns of values) of schema 8, in order, with Arrow types.

Older schemas lack columns: `facts` up to schema 7, `trajectories.weight` up to 6, `operations` up to 5, `excluded` up
to 4, and in schema 2 also `old_logprobs`, `ref_logprobs`, `values` and `kl_coef`. In schemas 2 and 3, `rewards` and
`tool_rewards` are maps.
"""

_VERSION_7 = {path: kind for path, kind in LEAVES.items() if path != "facts"}
_VERSION_6 = {path: kind for path, kind in _VERSION_7.items() if path != "trajectories.weight"}
_VERSION_5 = {path: kind for path, kind in _VERSION_6.items() if not path.startswith("operations.")}
_VERSION_4 = {path: kind for path, kind in _VERSION_5.items() if path != "excluded"}
_NEW = ("old_logprobs", "ref_logprobs", "values", "kl_coef")
LEAVES_OF: Mapping[str, Mapping[str, str]] = {
    "2": {path: kind for path, kind in _VERSION_4.items() if path.rpartition(".")[2] not in _NEW},
    "3": _VERSION_4,
    "4": _VERSION_4,
    "5": _VERSION_5,
    "6": _VERSION_6,
    "7": _VERSION_7,
    "8": LEAVES,
}
"""Schema version -> its leaves and their types."""
