"""Test helpers: a session with a scripted engine, and a client that asks it and writes its answers back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loop_builders import CHAT, TASK, ListEngine, config

from agentrl.agent_loops.loading import LoopFactory
from agentrl.engines.base import SamplingParams
from agentrl.gateway.base import TurnAnswer, TurnRequest
from agentrl.gateway.session import Session
from agentrl.rollouts.generate_session import RolloutGenerate
from agentrl.types.messages import FunctionSchema, Message, ToolSchema

SAMPLING = SamplingParams(stop_token_ids=CHAT.stop_token_ids)
PARAMETERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
ADD = ToolSchema(function=FunctionSchema(name="add", description="Add.", parameters=PARAMETERS))


def session(engine, *, seed: int = 0, chat=CHAT, sampling=SAMPLING, gateway=None, data=None, **multi_turn) -> Session:
    """A session of a rollout, with its own engine."""
    run_config = config(**multi_turn)
    section = run_config.rollout.gateway.model_copy(update=gateway or {})
    run_config = run_config.model_copy(
        update={
            "rollout": run_config.rollout.model_copy(update={"gateway": section}),
            "data": run_config.data.model_copy(update=data or {}),
        }
    )
    loop = LoopFactory(chat, run_config).build("tool_agent", None, {})
    generate = RolloutGenerate(engine, seed=seed)
    made = Session(chat, loop.parser, run_config, generate, sampling, TASK, call_format=loop.call_format)
    made.generate = generate  # for tests
    return made


def listed(*replies: str) -> Session:
    return session(ListEngine(*replies))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def echoed(answer: TurnAnswer) -> Message:
    """An answer as a client sends it back."""
    message = Message(role="assistant", content=answer.content)
    if answer.calls:
        message["tool_calls"] = [
            {"id": each.call_id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for each in answer.calls
        ]
    return message


@dataclass
class Client:
    """A program that asks a session, and keeps its conversation."""

    session: Session
    messages: list[Message] = field(default_factory=lambda: [user("What is 2 + 3?")])
    tools: Sequence[ToolSchema] = (ADD,)
    rewritten: Callable[[list[Message]], list[Message]] = list
    answers: list[TurnAnswer] = field(default_factory=list)

    async def ask(self, *new: Message, deliver: bool = True, **options) -> TurnAnswer:
        """Ask with further messages; the answer becomes part of the conversation."""
        self.messages += new
        answer = await self.session.answer(self.request(**options))
        self.answers.append(answer)
        if deliver:
            self.session.delivered(answer.turn_id)
            self.messages.append(echoed(answer))
        return answer

    def request(self, **options) -> TurnRequest:
        return TurnRequest(self.rewritten(self.messages), self.tools, **options)

    def results(self, *texts: str) -> list[Message]:
        """The tool messages for the calls of the last answer."""
        calls = self.answers[-1].calls
        return [
            Message(role="tool", tool_call_id=each.call_id, content=text)
            for each, text in zip(calls, texts, strict=True)
        ]


def dumped(value: object) -> str:
    """JSON without spaces, as JavaScript writes it."""
    return json.dumps(value, separators=(",", ":"))
