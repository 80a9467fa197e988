"""What a file of trajectories holds: its columns, and the version that names them.

Text is UTF-8 as `agentrl.store.text` writes it. JSON is for what has no fixed shape: messages, and what a dataset
brings.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

VERSION = "3"
VERSION_KEY = "agentrl.schema_version"
PROVENANCE_KEY = "agentrl.provenance."
ROUTED_EXPERTS_KEY = "agentrl.routed_experts"
"""What the metadata of a file calls the hash of the routed experts beside it, where there are any."""

VOCABULARY, TEMPLATE = "tokenizer_sha256", "chat_template_sha256"
CONFIG, TOOLS, MADE_BY = "config", "tools", "agentrl"
"""What `trainer.provenance` calls what it keeps; here for readers that need no torch."""

TRAJECTORIES = "trajectories"
"""The folder of a run that holds them, a folder a split."""

IMPORTED_FROM = "imported_from"
"""What the provenance of imported files calls the format they were read from. Their rollouts have no tokens."""


def _fields(types: Mapping[str, pa.DataType], nullable: tuple[str, ...] = ()) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=name in nullable) for name, kind in types.items()]


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


_TEXT, _INTEGER, _FLOAT, _SCORE = pa.string(), pa.int64(), pa.float64(), pa.float32()
_JSON = _TEXT
_BY_NAME = pa.map_(_TEXT, pa.field("value", _FLOAT, nullable=False))

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
"""A trajectory of version 2, which kept nothing that was scored for training."""

SCORES = ("old_logprobs", "ref_logprobs", "values")
TRAJECTORY = pa.struct(
    [
        *_UNSCORED,
        *_fields({**dict.fromkeys(SCORES, _list_of(_SCORE)), "kl_coef": _FLOAT}, nullable=SCORES),
    ]
)
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
JSON_OF_TASK = {"messages", "ground_truth", "tools_kwargs", "interaction_kwargs", "extra_info"}
SEALS = "seals"
"""What `store.seal` makes of all the other columns."""

PLACE = {"step": _INTEGER, "split": _TEXT, "rollout": _INTEGER}
SCHEMA = pa.schema(
    _fields(
        {
            **PLACE,
            **TASK,
            **ROLLOUT,
            "reward": _FLOAT,
            "trajectories": _list_of(TRAJECTORY),
            SEALS: _list_of(pa.uint32()),
        },
        nullable=("agent_name", "error", "scored_text_sha256"),
    )
)
"""What is written, of version `VERSION`."""

_PLACE = SCHEMA.get_field_index("trajectories")
READABLE = {
    "2": SCHEMA.set(_PLACE, SCHEMA.field(_PLACE).with_type(_list_of(_UNSCORED))),
    VERSION: SCHEMA,
}
"""Version -> what files of it hold, of each that can be read."""
