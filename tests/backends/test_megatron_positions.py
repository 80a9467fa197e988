"""Options of a model that megatron-core would compute differently are refused, by their key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from megatron_models import LLAMA3, YARN, make_request
from tiny_models import save_model

from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.errors import ConfigError

pytestmark = pytest.mark.megatron

NOT_DIVIDED = "'num_experts_per_tok' other than 2 'topk_group' in config.json of a model of type 'glm4_moe'"
REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "low frequencies": ("llama", {"rope_parameters": LLAMA3 | {"low_freq_factor": 2.0}}, "'low_freq_factor: 2.0'"),
    "high frequencies": ("llama", {"rope_parameters": LLAMA3 | {"high_freq_factor": 8.0}}, "'high_freq_factor: 8.0'"),
    "original length": (
        "llama",
        {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 4096}},
        "'original_max_position_embeddings: 4096' of position embeddings of type 'llama3'",
    ),
    "part of a head": (
        "llama",
        {"rope_parameters": LLAMA3 | {"partial_rotary_factor": 0.5}},
        "'partial_rotary_factor: 0.5'",
    ),
    "YaRN of other families": ("qwen3", {"rope_parameters": YARN}, "position embeddings of type 'yarn'.*type 'qwen3'"),
    "attention factor": (
        "deepseek_v3",
        {"rope_parameters": YARN | {"attention_factor": 1.5}},
        "'attention_factor: 1.5'",
    ),
    "bounds that are not rounded": (
        "deepseek_v3",
        {"rope_parameters": YARN | {"truncate": False}},
        "'truncate: False'",
    ),
    "one scale": ("deepseek_v3", {"rope_parameters": YARN | {"mscale": None}}, "'mscale_all_dim' without 'mscale'"),
    "order of a head": ("deepseek_v3", {"rope_interleave": False}, "'rope_interleave: False'"),
    "epsilon": ("deepseek_v3", {"rms_norm_eps": 1e-5}, "'rms_norm_eps: 1e-05'"),
    "weights of experts": ("glm4_moe", {"norm_topk_prob": False}, "'norm_topk_prob: false'.*type 'glm4_moe'"),
    "windows": ("mistral", {}, "'sliding_window: 6'"),
    "another activation": ("gemma", {"hidden_act": "gelu"}, "'hidden_act: gelu'"),
    "another family": (
        "gemma2",
        {},
        "models of type 'gemma2'.* with megatron-bridge gemma, mistral",
    ),
    "groups of experts": ("glm4_moe", {"n_group": 4, "topk_group": 4}, NOT_DIVIDED),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    families = sorted({family for family, _, _ in REFUSED.values()})
    return {family: save_model(tmp_path_factory.mktemp(family), family) for family in families}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_computed_differently_is_refused(ranks, folders, tmp_path, name):
    family, changes, complaint = REFUSED[name]
    for file in folders[family].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ConfigError, match=rf"^model\.path: .*does not support .*{complaint}"):
        MegatronBackend(ranks, make_request(tmp_path), seed=0)
