"""Runs `agentrl gateway`: prints the address for clients and ends idle rollouts. Ctrl-C ends all rollouts."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import torch

from agentrl.concurrency.notebook import run_loop
from agentrl.config import RunConfig
from agentrl.run_folder.files import disk_errors_in_one_line
from agentrl.run_folder.location import opened, shown
from agentrl.run_folder.reproducibility import ReproducibilityReport
from agentrl.security.visible_text import visible
from agentrl.trainer.builders.recording import Keys, Recording, open_recording
from agentrl.trainer.builders.records import keep_config
from agentrl.trainer.choices import resolved

_CLIENTS = "the conversations depend on the clients of the gateway"
_CHECK_S = 5.0
"""Maximum seconds between two checks for idle rollouts."""


def serve(config: RunConfig, host: str, port: int, idle_s: float, keys: Keys) -> None:
    """Serve until Ctrl-C.

    Args:
        idle_s: seconds without a request after which a rollout ends.

    Raises:
        AgentRLError: the model, the port or the folder cannot be used, or the disk is full.
    """
    config = resolved(config, "rollout")
    with opened(config) as placed:
        folder = placed.trainer.run_dir
        print(f"run folder: {shown(folder)}")
        with disk_errors_in_one_line(folder, lambda: "rollouts that ended before this error are saved"):
            if config.trainer.num_threads:
                torch.set_num_threads(config.trainer.num_threads)
            with suppress(KeyboardInterrupt):
                run_loop(_serve(placed, host, port, idle_s, keys))


async def _serve(config: RunConfig, host: str, port: int, idle_s: float, keys: Keys) -> None:
    async with open_recording(config, host, port, keys) as recording:
        keep_config(config)
        ReproducibilityReport(config, live=True, clients=_CLIENTS).begin(-1)
        _print_start(config, recording, idle_s)
        idle = asyncio.create_task(_end_idle(recording, idle_s))
        try:
            done, _ = await asyncio.wait({idle, recording.failed}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # raises the error that ended the task
        finally:
            idle.cancel()


async def _end_idle(recording: Recording, idle_s: float) -> None:
    while True:
        await asyncio.sleep(min(idle_s / 4, _CHECK_S))
        await recording.rollouts.end_idle(idle_s)


def _print_start(config: RunConfig, recording: Recording, idle_s: float) -> None:
    url = recording.server.local_url
    print(visible(f"model: {config.model.path}, engine {config.rollout.engine}"))
    end = f"it ends after {idle_s:g} s without a request, by POST /rollouts/KEY/end, or at Ctrl-C"
    if recording.shared_key:
        print(f"each conversation is a rollout; {end}\n")
        print(f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={recording.shared_key}")
    else:
        print(f"POST /rollouts opens the {config.group_size} rollouts of a task (rollout.n), each with a key; {end}\n")
    admin = recording.admin_key
    print(f"export AGENTRL_GATEWAY={url} AGENTRL_ADMIN_KEY={admin}   # opens and ends rollouts", flush=True)
