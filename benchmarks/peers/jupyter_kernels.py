"""Measure the starts and the calls of Jupyter kernels: `python jupyter_kernels.py NUM_KERNELS NUM_CALLS`.

Prints the times in seconds as JSON.

Each kernel is a process of this machine without isolation; `jupyter_client` starts it and sends code over ZeroMQ.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from jupyter_client.manager import start_new_async_kernel

CODE = "x = globals().get('x', 0) + 1; x"


async def main(num_kernels: int, num_calls: int) -> None:
    starts, calls = [], []

    async def start() -> object:
        began = time.perf_counter()
        opened = await start_new_async_kernel(kernel_name="python3")
        starts.append(time.perf_counter() - began)
        return opened

    async def use(client: object) -> None:
        for _ in range(max(1, num_calls // num_kernels)):
            began = time.perf_counter()
            await client.execute_interactive(CODE, output_hook=lambda message: None)
            calls.append(time.perf_counter() - began)

    opened = [await start() for _ in range(num_kernels)]
    began = time.perf_counter()
    await asyncio.gather(*(use(client) for _, client in opened))
    elapsed = time.perf_counter() - began
    for manager, client in opened:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
    print(json.dumps({"starts": starts, "calls": calls, "elapsed_s": elapsed}))


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
