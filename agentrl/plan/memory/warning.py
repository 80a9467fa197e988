"""The warning that `agentrl train` prints if, according to the plan, the run does not fit into memory."""

from __future__ import annotations

import os

from agentrl.config.run import RunConfig
from agentrl.models.facts import model_content
from agentrl.plan.counts import shape_of
from agentrl.plan.gpu import gpu_memory
from agentrl.plan.memory.changes import changes_for
from agentrl.plan.memory.fit import fit_of
from agentrl.plan.memory.report import memory_verdict


def memory_warning(config: RunConfig) -> str | None:
    """Return the warning; None if the run fits, the shape of the model is unknown, or the prediction fails.

    Of the model, only `config.json` is read. Without a GPU, each process has an equal share of this machine's memory.
    """
    try:
        shape = shape_of(model_content(config.model.path) or {})
        gpu = None if config.actor.device == "cpu" else gpu_memory()
        memory = gpu or machine_memory() / config.trainer.num_processes
        if shape is None or (fit := fit_of(config, shape, memory, on_cpu=gpu is None)).fits:
            return None
        return f"warning: {memory_verdict(fit, changes_for(config, shape, memory, on_cpu=gpu is None))}"
    except Exception:  # a prediction must not end a run; a wrong configuration is refused elsewhere
        return None


def machine_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
