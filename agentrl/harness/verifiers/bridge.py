"""Runs a taskset of verifiers. This file runs in the Python environment of verifiers, and imports nothing from agentrl.

    python bridge.py rows CONFIG     prints a row for each task, as JSON lines
    python bridge.py serve CONFIG    reads a request from each line, and answers each with a line

CONFIG is the JSON configuration of a verifiers environment: {"taskset": {"id": ...}, "agent": {...}}. A request is
{"id", "base_url", "model", "task"}, or {"cancel": id}; an answer is {"id", "reward", "rewards", "error"}. The first
line of the output is {"ready": true}. The process ends when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
from importlib import import_module
from typing import Any, TextIO

START_S = 300.0
END_S = 10.0
KEY_VARIABLE = "AGENTRL_GATEWAY_KEY"
"""Environment variable from which verifiers reads an API key. The gateway uses the key in the address instead."""


def library(name: str) -> Any:  # Any: a module of verifiers, which agentrl does not depend on
    """Import a module of verifiers."""
    return import_module(f"verifiers.v1{name}")


def main() -> None:
    """Run the mode that the command line names."""
    mode, config = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # so that output of libraries is not read as an answer
    if mode == "rows":
        print_rows(config, answers)
    else:
        asyncio.run(serve(config, answers))


def print_rows(config: dict[str, Any], answers: TextIO) -> None:
    """Print the tasks of the taskset."""
    resolved = library(".utils.loaders").resolve_env_config(config)
    for task in library(".utils.loaders").load_taskset(resolved.taskset).load():
        data = task.data.model_dump(mode="json")
        prompt = data.get("prompt") or data.get("instruction") or data.get("name") or "The taskset has the prompt."
        answers.write(
            json.dumps({"prompt": prompt, "verifiers_task": data, "data_source": config["taskset"]["id"]}) + "\n"
        )


def run_server(config: dict[str, Any], queue: Any) -> None:  # Any: a queue of multiprocessing
    """Serve the taskset in a separate process."""
    resolved = library(".utils.loaders").resolve_env_config(config)
    library(".serve").EnvServer.run_server(address_queue=queue, config=resolved, address="tcp://127.0.0.1:0")


async def serve(config: dict[str, Any], answers: TextIO) -> None:
    """Answer requests until the input ends."""
    os.environ.setdefault(KEY_VARIABLE, "unused")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    server = context.Process(target=run_server, args=(config, queue))
    server.start()
    try:
        client = library(".serve").EnvClient(await asyncio.to_thread(queue.get, True, START_S))
        await client.wait_for_server_startup(timeout=START_S)
        answers.write('{"ready": true}\n')
        await answer_requests(client, answers)
    finally:
        server.terminate()
        server.join(END_S)
        server.kill()


async def answer_requests(client: Any, answers: TextIO) -> None:  # Any: verifiers' client
    """Run all requests of the input concurrently."""
    running: dict[int, asyncio.Task[None]] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        if "cancel" in request:
            if task := running.get(request["cancel"]):
                task.cancel()
            continue
        running = {number: task for number, task in running.items() if not task.done()}
        running[request["id"]] = asyncio.ensure_future(answer(client, request, answers))
    for task in running.values():
        task.cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)
    await client.close()


async def answer(client: Any, request: dict[str, Any], answers: TextIO) -> None:  # Any: verifiers' client
    """Run one rollout, and write its rewards."""
    try:
        found = await rollout(client, request)
    except Exception as error:  # code of the taskset or of verifiers may raise any error
        found = {"error": f"{type(error).__name__}: {error}"}
    answers.write(json.dumps({"id": request["id"], **found}) + "\n")


async def rollout(client: Any, request: dict[str, Any]) -> dict[str, Any]:  # Any: verifiers' client
    """Run one rollout, whose model requests go to `base_url`, and return its rewards."""
    types = library("")
    endpoint = types.EvalClientConfig(base_url=request["base_url"], api_key_var=KEY_VARIABLE)
    result = await client.run(endpoint, request["model"], types.SamplingConfig(), request["task"])
    traces = getattr(result, "traces", None) or [result]
    (trace, *_) = traces
    rewards = {name: each.value for name, each in trace.rewards.items() if each is not None}
    errors = [str(getattr(each, "message", each)) for each in trace.errors]
    # a rollout without rewards failed before it was scored
    return {"reward": trace.reward if rewards else None, "rewards": rewards, "error": "; ".join(errors)[:2000]}


if __name__ == "__main__":
    main()
