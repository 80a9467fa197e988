"""Shapes of public models, in `architectures/`, and the experiments that train them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.cli.compose import compose_config
from agentrl.config import RunConfig

ARCHITECTURES = Path(__file__).with_name("architectures")
PUBLISHED = {
    "qwen3_8b": 8.2e9,
    "qwen3_30b_a3b": 30.5e9,
    "qwen3_235b_a22b": 235e9,
    "deepseek_v3": 671e9,
    "glm_4_5": 355e9,
}
"""Experiment -> number of weights that its model's authors give."""
WITH_MEGATRON = sorted(PUBLISHED.keys() - {"qwen3_8b"})


def shape_of(name: str) -> dict[str, object]:
    return json.loads((ARCHITECTURES / f"{name}.json").read_text())


def config_of(name: str, *overrides: str) -> RunConfig:
    return compose_config([f"+experiment={name}", *overrides])


@cache
def weights_of(name: str) -> dict[str, int]:
    """Name -> size of every weight of the complete model, which transformers builds without memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape_of(name)))
    return {key: value.numel() for key, value in model.named_parameters()}
