"""The simulated engine against queueing formulas and hand counts."""

from __future__ import annotations

import asyncio
import math
import random
import statistics

import pytest

from agentrl.plan.split.clock import run_virtual
from agentrl.plan.split.replica import Replica


class Linear:
    """A step takes `fixed` + `row` x requests + `context` x tokens seconds; prefill `new` seconds a token."""

    def __init__(self, fixed: float = 0.0, row: float = 0.0, context: float = 0.0, new: float = 0.0) -> None:
        self.fixed, self.row, self.context, self.new = fixed, row, context, new

    def decode_s(self, rows: float, context: float) -> float:
        return self.fixed + self.row * rows + self.context * context

    def prefill_s(self, new: float, context: float) -> float:
        return self.new * new


def now() -> float:
    return asyncio.get_running_loop().time()


def test_one_request_takes_prefill_and_its_tokens():
    async def main() -> tuple[float, float]:
        replica = Replica(Linear(fixed=0.1, row=0.01, new=0.002), 8)
        assert await replica.generate(100, 100, 50) == [(0, 50)]
        return now(), replica.busy_s

    assert run_virtual(main()) == pytest.approx((0.2 + 50 * 0.11,) * 2)


def test_two_requests_share_the_steps():
    async def main() -> list[float]:
        replica, ends = Replica(Linear(fixed=1, row=0.5), 8), list[float]()

        async def one(sampled: int) -> None:
            await replica.generate(0, 0, sampled)
            ends.append(now())

        await asyncio.gather(one(10), one(30))
        return ends

    assert run_virtual(main()) == pytest.approx([10 * 2, 10 * 2 + 20 * 1.5])


def test_requests_beyond_the_limits_wait_and_older_tasks_go_first():
    async def main() -> list[str]:
        replica, order = Replica(Linear(fixed=1), 1), list[str]()

        async def one(name: str, priority: int) -> None:
            await replica.generate(10, 10, 5, priority)
            order.append(name)

        await asyncio.gather(one("first", 0), one("late", -5), one("old", 3))
        return order

    assert run_virtual(main()) == ["first", "old", "late"]


def test_kv_bounds_the_running_requests():
    async def main() -> float:
        replica = Replica(Linear(fixed=1), 8, max_kv_tokens=100)
        await asyncio.gather(*(replica.generate(30, 30, 20) for _ in range(4)))
        return now()

    assert run_virtual(main()) == pytest.approx(2 * 20)  # two at a time


def test_a_cancelled_request_frees_its_place():
    async def main() -> float:
        replica = Replica(Linear(fixed=1), 1)
        slow = asyncio.create_task(replica.generate(0, 0, 1000))
        other = asyncio.create_task(replica.generate(0, 0, 5))
        await asyncio.sleep(10)
        slow.cancel()
        await other
        assert replica.load == 0
        return now()

    assert run_virtual(main()) == pytest.approx(15)


def test_new_weights_begin_a_span_and_compute_the_context_again():
    async def main() -> tuple[list[tuple[int, int]], float]:
        replica = Replica(Linear(fixed=1, new=0.1), 4)
        running = asyncio.create_task(replica.generate(50, 50, 100))
        await asyncio.sleep(5 + 40)  # prefill, then 40 tokens
        replica.pause(True)
        await asyncio.sleep(7)
        replica.load_weights(1, recompute=True)
        replica.pause(False)
        return await running, now()

    spans, end = run_virtual(main())
    assert spans == [(0, 40), (1, 60)]
    assert end == pytest.approx(5 + 40 + 7 + 0.1 * 90 + 60)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.4, 0.7])
def test_poisson_arrivals_take_the_time_of_a_processor_sharing_queue(load):
    """M/G/1-PS: mean time = mean work / (1 - load), for any work (Kleinrock 1976, volume 2, section 4.4)."""

    async def main() -> float:
        rng, times = random.Random(1), list[float]()
        replica = Replica(Linear(row=0.01), 10**9)  # n requests share one token per 0.01 s
        work_s = 100 * 0.01

        async def one(sampled: int) -> None:
            started = now()
            await replica.generate(0, 0, sampled)
            times.append(now() - started)

        async with asyncio.TaskGroup() as together:
            for _ in range(20_000):
                await asyncio.sleep(rng.expovariate(load / work_s))
                together.create_task(one(max(1, round(rng.expovariate(1 / 100)))))
        return statistics.fmean(times)

    assert run_virtual(main()) == pytest.approx(1.0 / (1 - load), rel=0.06)


def test_no_time_passes_without_requests():
    async def main() -> float:
        replica = Replica(Linear(fixed=1), 4)
        await asyncio.sleep(9)
        return replica.busy_s

    assert run_virtual(main()) == 0 != math.inf
