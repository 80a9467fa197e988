"""A checkpoint of four ranks with two copies of the weights: `python two_copies.py MODEL FOLDER`.

Prints the metrics of the next step as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import torch
from rank_processes import ranks_of
from tiny_models import make_samples

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.backend import FsdpBackend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig

if __name__ == "__main__":
    model, folder = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    optim = {"lr": 1e-2, "lr_warmup_steps": 2, "eps": 1e-3}
    actor = ActorConfig.model_validate({"optim": optim, "device": "cpu", "fsdp_size": 2})
    with ranks_of(4, folder) as ranks:
        backend = FsdpBackend(ranks, ModelRequest(ModelConfig(path=str(model)), actor, total_updates=10), seed=0)
        asyncio.run(backend.train_step(make_samples(5), PolicyLoss("vanilla")))
        asyncio.run(backend.save(folder / "saved"))
        print(json.dumps(asyncio.run(backend.train_step(make_samples(5, 1), PolicyLoss("vanilla"))).metrics))
