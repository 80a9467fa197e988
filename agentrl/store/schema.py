"""Schema of a file of trajectories: its columns and its version.

Text is UTF-8, written by `agentrl.store.text`. Values without a fixed schema are stored as JSON text, for example
messages and values from a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from agentrl.store.layout import EXCLUDED_SPLIT as EXCLUDED_SPLIT
from agentrl.store.layout import TRAJECTORIES as TRAJECTORIES

VERSION = "8"
VERSION_KEY = "agentrl.schema_version"
PROVENANCE_KEY = "agentrl.provenance."
ROUTED_EXPERTS_KEY = "agentrl.routed_experts"
"""Metadata key for the hash of the routed experts file's header; missing if there is no routed experts file."""

VOCABULARY, TEMPLATE = "tokenizer_sha256", "chat_template_sha256"
CONFIG, TOOLS, MADE_BY = "config", "tools", "agentrl"
"""Keys of the provenance (`run_folder.provenance`), defined here for readers that must not import torch."""

IMPORTED_FROM = "imported_from"
"""Provenance key for the log format of imported rollouts. Such rollouts have tokens only if `HAS_TOKENS` is set too."""
RECORDED = "recorded"
"""Provenance key that marks rollouts which `agentrl gateway` recorded."""
HAS_TOKENS = "has_tokens"
"""Provenance key: set if the imported rollouts have tokens and log-probabilities."""


def _fields(types: Mapping[str, pa.DataType], nullable: tuple[str, ...] = ()) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=name in nullable) for name, kind in types.items()]


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


_TEXT, _INTEGER, _FLOAT, _SCORE = pa.string(), pa.int64(), pa.float64(), pa.float32()
_JSON = _TEXT
_BY_NAME = _list_of(pa.struct(_fields({"name": _TEXT, "value": _FLOAT})))
_BY_NAME_IN_MAPS = pa.map_(_TEXT, pa.field("value", _FLOAT, nullable=False))
"""Type of the columns `BY_NAME` in schema versions 2 and 3; replaced because `datasets` cannot read Arrow maps."""

SPAN = pa.struct(_fields({"version": _INTEGER, "num_tokens": _INTEGER}))
SEGMENT = pa.struct(
    _fields(
        {
            "author": _TEXT,
            "token_ids": _list_of(pa.int32()),
            "logprobs": _list_of(_FLOAT),
            "policy_versions": _list_of(SPAN),
            "temperature": _FLOAT,
            "media": _list_of(_TEXT),
        },
        nullable=("logprobs",),
    )
)
_UNSCORED = pa.struct(
    _fields(
        {"messages": _JSON, "segments": _list_of(SEGMENT), "advantages": _list_of(_FLOAT)},
        nullable=("advantages",),
    )
)
"""A trajectory in schema version 2, which has no training scores."""

SCORES = ("old_logprobs", "ref_logprobs", "values")
_UNWEIGHTED = pa.struct(
    [
        *_UNSCORED,
        *_fields({**dict.fromkeys(SCORES, _list_of(_SCORE)), "kl_coef": _FLOAT}, nullable=SCORES),
    ]
)
"""A trajectory in schema versions 3 to 6."""
WEIGHT = "weight"
"""Field of a trajectory: the factor by which its advantages are multiplied. New in version 7."""
TRAJECTORY = pa.struct([*_UNWEIGHTED, *_fields({WEIGHT: _FLOAT})])
TURN_REWARD = pa.struct(
    _fields(
        {"trajectory": _INTEGER, "segment": _INTEGER, "name": _TEXT, "value": _FLOAT, "observation_key": _TEXT},
        nullable=("observation_key",),
    )
)
TOOL_CALL = pa.struct(
    _fields(
        {
            "name": _TEXT,
            "arguments": _TEXT,
            "result": _TEXT,
            "outcome": _TEXT,
            "duration_s": _FLOAT,
            "num_tokens": _INTEGER,
            "reward": _FLOAT,
            "turn": _INTEGER,
            "trajectory": _INTEGER,
            "started_s": _FLOAT,
        }
    )
)
OPERATION = pa.struct(
    _fields(
        {
            "kind": _TEXT,
            "trajectory": _INTEGER,
            "num_before": _INTEGER,
            "first_segment": _INTEGER,
            "num_segments": _INTEGER,
            "first_message": _INTEGER,
            "num_messages": _INTEGER,
            "num_calls": _INTEGER,
            "detail": _JSON,
        }
    )
)
TASK = {
    "messages": _JSON,
    "ground_truth": _JSON,
    "data_source": _TEXT,
    "index": _INTEGER,
    "uid": _TEXT,
    "agent_name": _TEXT,
    "tools_kwargs": _JSON,
    "interaction_kwargs": _JSON,
    "extra_info": _JSON,
}
ROLLOUT = {
    "stop": _TEXT,
    "rewards": _BY_NAME,
    "turn_rewards": _list_of(TURN_REWARD),
    "tool_calls": _list_of(TOOL_CALL),
    "tool_rewards": _BY_NAME,
    "error": _TEXT,
    "infra_failed": pa.bool_(),
    "seed": pa.uint64(),
    "duration_s": _FLOAT,
    "scored_text_sha256": _TEXT,
}
BY_NAME = ("rewards", "tool_rewards")
"""Columns that are dictionaries of numbers in a `Rollout`, and lists of {name, value} in a file."""

JSON_OF_TASK = {"messages", "ground_truth", "tools_kwargs", "interaction_kwargs", "extra_info"}
SEALS = "seals"
"""Column with the checksums of all other columns, see `store.checksums`."""

EXCLUDED = "excluded"
"""Column with the reason why a rollout was not trained on (`types.excluded`), else null. New in version 5."""

OPERATIONS = "operations"
"""Column with the operations of the conversations (`types.operation`). New in version 6."""

FACTS = "facts"
"""Column with the facts that the agent loop recorded (`Rollout.facts`), as JSON. New in version 8."""

PLACE = {"step": _INTEGER, "split": _TEXT, "rollout": _INTEGER}
SCHEMA = pa.schema(
    _fields(
        {
            **PLACE,
            **TASK,
            **ROLLOUT,
            "reward": _FLOAT,
            "trajectories": _list_of(TRAJECTORY),
            EXCLUDED: _TEXT,
            OPERATIONS: _list_of(OPERATION),
            FACTS: _JSON,
            SEALS: _list_of(pa.uint32()),
        },
        nullable=("agent_name", "error", "scored_text_sha256", EXCLUDED),
    )
)
"""The schema of new files, of version `VERSION`."""


def _changed(schema: pa.Schema, **types: pa.DataType) -> pa.Schema:
    return pa.schema([field.with_type(types.get(field.name, field.type)) for field in schema])


_VERSION_7 = pa.schema([field for field in SCHEMA if field.name != FACTS])
_VERSION_6 = _changed(_VERSION_7, trajectories=_list_of(_UNWEIGHTED))
_VERSION_5 = pa.schema([field for field in _VERSION_6 if field.name != OPERATIONS])
_VERSION_4 = pa.schema([field for field in _VERSION_5 if field.name != EXCLUDED])
_VERSION_3 = _changed(_VERSION_4, rewards=_BY_NAME_IN_MAPS, tool_rewards=_BY_NAME_IN_MAPS)
READABLE = {
    "2": _changed(_VERSION_3, trajectories=_list_of(_UNSCORED)),
    "3": _VERSION_3,
    "4": _VERSION_4,
    "5": _VERSION_5,
    "6": _VERSION_6,
    "7": _VERSION_7,
    VERSION: SCHEMA,
}
"""Readable versions -> their schemas."""
