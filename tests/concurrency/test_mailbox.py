from __future__ import annotations

import asyncio
import threading

from agentrl.concurrency.mailbox import Mailbox


class Wakes:
    """An event loop as a mailbox sees it; counts its wake-ups."""

    def __init__(self):
        self.callbacks = []

    def call_soon_threadsafe(self, callback):
        self.callbacks.append(callback)


def test_batch_of_messages_wakes_once():
    async def main():
        sender, other, got = Mailbox(asyncio.get_running_loop()), Wakes(), []
        box = Mailbox(other)
        for number in range(5):
            sender.send(box, lambda number=number: got.append(number))
        during = len(other.callbacks)
        await asyncio.sleep(0)
        assert (during, len(other.callbacks)) == (0, 1)
        other.callbacks.pop()()
        sender.send(box, lambda: got.append("next round"))
        await asyncio.sleep(0)
        other.callbacks.pop()()
        return got

    assert asyncio.run(main()) == [0, 1, 2, 3, 4, "next round"]


def test_message_arriving_during_delivery_wakes_again():
    loop, got = Wakes(), []
    box = Mailbox(loop)
    box.post(lambda: box.post(lambda: got.append("second")))
    loop.callbacks.pop()()
    assert got == []
    loop.callbacks.pop()()
    assert got == ["second"]


def test_messages_of_many_threads_arrive_in_order_per_thread():
    async def main():
        box, got, done = Mailbox(asyncio.get_running_loop()), [], asyncio.Event()

        def write(writer):
            for number in range(2000):
                box.post(lambda number=number: got.append((writer, number)))
            box.post(lambda: len(got) >= 6000 and done.set())

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(done.wait(), 10)
        return got

    got = asyncio.run(main())
    for writer in range(3):
        assert [number for who, number in got if who == writer] == list(range(2000))


def test_closed_event_loop_gets_no_messages():
    loop = asyncio.new_event_loop()
    box = Mailbox(loop)
    loop.close()
    delivered: list[int] = []
    box.post(lambda: delivered.append(1))
    assert delivered == []
