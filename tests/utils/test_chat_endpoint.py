"""The client of chat endpoints beyond what the tests of the judge and of simulated users cover."""

from __future__ import annotations

import asyncio
import json
import threading

from judge_server import JudgeServer, Reply, serving

from agentrl.types.messages import ChatAnswer
from agentrl.utils.chat_endpoint import ChatEndpoint, EndpointOptions

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def test_a_second_event_loop_gets_its_own_connection_while_the_first_waits():
    """The loop of simulated users is replaced if a user's code blocks it."""
    arrived, release = threading.Event(), threading.Event()

    class Waits(JudgeServer):
        def answer(self, path, key, body):
            if body["messages"][0]["content"] == "wait":
                arrived.set()
                release.wait()
            return super().answer(path, key, body)

    with serving(Waits(otherwise=lambda body: Reply("here"))) as server:
        endpoint, found = ChatEndpoint(EndpointOptions(server.url)), []
        waiting = {**HELLO, "messages": [{"role": "user", "content": "wait"}]}
        first = threading.Thread(target=lambda: found.append(asyncio.run(endpoint.ask(waiting, lambda a: a.text))))
        first.start()
        arrived.wait()
        second = asyncio.run(endpoint.ask(HELLO, lambda answer: answer.text))
        release.set()
        first.join()
    assert [second, *found] == ["here", "here"]


def test_counts_of_tokens_are_read_if_they_are_plausible():
    def body(usage):
        message = {"role": "assistant", "content": "x"}
        return Reply(raw=json.dumps({"choices": [{"message": message}], "usage": usage}).encode())

    usages = [{"prompt_tokens": 7, "completion_tokens": 3}, {"prompt_tokens": -1, "completion_tokens": "3"}, [1], None]
    with serving(JudgeServer(map(body, usages))) as server:
        endpoint = ChatEndpoint(EndpointOptions(server.url))
        found = [asyncio.run(endpoint.ask(HELLO, lambda answer: answer)) for _ in usages]
    assert found == [ChatAnswer("x", False, 7, 3), *[ChatAnswer("x")] * 3]
