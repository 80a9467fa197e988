from __future__ import annotations

import asyncio

from agentrl.concurrency.deadlines import Alarm


def test_alarm_wakes_waiters_in_time_and_skips_forgotten_ones():
    async def main():
        loop = asyncio.get_running_loop()
        alarm, start, woken = Alarm(loop), loop.time(), []
        waiters = {seconds: loop.create_future() for seconds in (0.02, 0.01, 0.03, 0.015)}
        for seconds, waiter in waiters.items():
            waiter.add_done_callback(lambda _, seconds=seconds: woken.append((seconds, loop.time() - start)))
            alarm.set(waiter, seconds)
        alarm.unset(waiters[0.015])
        await waiters[0.03]
        await asyncio.sleep(0)
        return woken

    woken = asyncio.run(main())
    assert [seconds for seconds, _ in woken] == [0.01, 0.02, 0.03]
    assert all(after >= seconds for seconds, after in woken)
