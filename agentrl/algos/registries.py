"""Registries of estimators and losses. Their modules, and torch, are imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentrl.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.algos.losses.registry import TokenLoss

_ADVANTAGES, _LOSSES = "agentrl.algos.advantages", "agentrl.algos.losses"

ADVANTAGE_ESTIMATORS: Registry[Callable[..., tuple[Tensor, Tensor]]] = Registry(
    "advantage estimator",
    {
        "grpo": f"{_ADVANTAGES}.grpo:grpo",
        "dr_grpo": f"{_ADVANTAGES}.dr_grpo:dr_grpo",
        "grpo_passk": f"{_ADVANTAGES}.grpo_passk:grpo_passk",
        "rloo": f"{_ADVANTAGES}.rloo:rloo",
        "remax": f"{_ADVANTAGES}.remax:remax",
        "reinforce_plus_plus": f"{_ADVANTAGES}.reinforce_plus_plus:reinforce_plus_plus",
        "reinforce_plus_plus_baseline": f"{_ADVANTAGES}.reinforce_plus_plus_baseline:reinforce_plus_plus_baseline",
        "opo": f"{_ADVANTAGES}.opo:opo",
        "gpg": f"{_ADVANTAGES}.gpg:gpg",
        "gdpo": f"{_ADVANTAGES}.gdpo:gdpo",
        "gae": f"{_ADVANTAGES}.gae:gae",
        "grpo_process": f"{_ADVANTAGES}.grpo_process:grpo_process",
        "grpo_turn": f"{_ADVANTAGES}.grpo_turn:grpo_turn",
        "mt_grpo": f"{_ADVANTAGES}.mt_grpo:mt_grpo",
        "gigpo": f"{_ADVANTAGES}.gigpo:gigpo",
    },
    aliases={"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"},
)
"""name -> `function(AdvantageBatch, **options) -> (advantages, returns)`."""

POLICY_LOSSES: Registry[Callable[..., TokenLoss]] = Registry(
    "policy loss",
    {
        "vanilla": f"{_LOSSES}.vanilla:vanilla",
        "gspo": f"{_LOSSES}.gspo:gspo",
        "cispo": f"{_LOSSES}.cispo:cispo",
        "gmpo": f"{_LOSSES}.gmpo:gmpo",
        "sapo": f"{_LOSSES}.sapo:sapo",
        "clip_cov": f"{_LOSSES}.clip_cov:clip_cov",
        "kl_cov": f"{_LOSSES}.clip_cov:kl_cov",
        "dppo": f"{_LOSSES}.dppo:dppo",
        "dppo_tv": f"{_LOSSES}.dppo:dppo_tv",
        "dppo_kl": f"{_LOSSES}.dppo:dppo_kl",
        "dro": f"{_LOSSES}.dro:dro",
        "reinforce": f"{_LOSSES}.reinforce:reinforce",
        "gpg": f"{_LOSSES}.reinforce:reinforce",  # GPG differs from REINFORCE only in its advantages
        "sft": f"{_LOSSES}.sft:sft",
    },
    aliases={"geo_mean": "gmpo"},
)
"""name -> `function(LossBatch, **options) -> TokenLoss`."""
