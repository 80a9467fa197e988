"""Hardware and software environment of a run, and whether a run in this environment is reproducible."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import JsonValue

from agentrl.capabilities import backend_spec, engine_spec
from agentrl.config import RunConfig
from agentrl.models.loading import find_device
from agentrl.version import __version__


def environment(config: RunConfig, live: bool) -> dict[str, JsonValue]:
    """Return versions, platform, processor, the devices in use, and the number of torch threads."""
    libraries = ("transformers", "tokenizers")
    versions: dict[str, JsonValue] = {
        "agentrl": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: version(name) for name in libraries},
    }
    devices: dict[str, JsonValue] = {name: _device_name(device) for name, device in _devices(config, live).items()}
    return {
        "versions": versions,
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "devices": devices,
        "threads": torch.get_num_threads(),
    }


def why_not(config: RunConfig, live: bool) -> Iterator[str]:
    """Yield the settings that make a run not reproducible.

    On the CPU, torch's results do not depend on timing. On a GPU, they may depend on timing, so runs on a GPU are
    never reported as reproducible.

    Args:
        live: whether the run has rollouts.
    """
    engine = engine_spec(config.rollout.engine)
    if live and "deterministic" in engine.options and not config.rollout.deterministic:
        yield "rollout.deterministic=false"
    elif live and not engine.deterministic:
        yield f"rollout.engine={config.rollout.engine} is not deterministic"
    for name in ("max_staleness", "over_sampling") if live else ():
        if value := getattr(config.trainer, name):  # timing affects weight versions and requeued groups
            yield f"trainer.{name}={value}"
    for name, device in _devices(config, live).items():
        if device.type != "cpu":
            yield f"{name}.device is {device}"
    if config.trainer.num_threads is None:
        yield "trainer.num_threads=null"
    if torch.get_num_threads() > 1 and os.environ.get("OMP_DYNAMIC", "").lower() in ("true", "1"):
        yield "OMP_DYNAMIC lets the number of threads change"


def provided(config: RunConfig, live: bool) -> Iterator[str]:
    """Yield the assumptions about user code on which the run's reproducibility depends."""
    if live:
        yield "tools, rewards and simulated users are deterministic"
    if live and "script_path" in engine_spec(config.rollout.engine).options:
        yield f"the script is deterministic: {config.rollout.script_path}"


def _devices(config: RunConfig, live: bool) -> dict[str, torch.device]:
    """Return the devices in use, by configuration section."""
    devices = {}
    if live and "device" in engine_spec(config.rollout.engine).options:
        devices["rollout"] = find_device(config.rollout.device, "rollout.device")
    trained = config.trainer.mode in ("train", "train_only")
    if trained and "device" in backend_spec(config.actor.backend).options:
        devices["actor"] = find_device(config.actor.device, "actor.device")
    return devices


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # the system is not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
