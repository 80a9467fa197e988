"""Images in turns: an image from a tool is part of the tool's answer, keeps its position, and is never trained."""

from __future__ import annotations

import asyncio

import pytest
from loop_builders import call, config
from test_image_places import Counting
from vision_models import picture, vision_tokenizer

from agentrl.agent_loops.tool_calls import as_shown
from agentrl.chat.base import ParsedCall
from agentrl.chat.format import ChatFormat
from agentrl.engines.base import Completion, FinishReason, GenerateRequest, SamplingParams
from agentrl.errors import ConfigError
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools import ToolResponse
from agentrl.tools.binding import AgentData
from agentrl.tools.result import ToolResult
from agentrl.tools.toolbox import Toolbox
from agentrl.types.messages import image_part
from agentrl.types.rollout import Outcome, Rollout
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, VersionSpan
from agentrl.utils.images import ImageError, content_hash, data_url, of_data_url

PLACE = 261
RED, BLUE = picture("red"), picture("blue")
TOKENIZER = vision_tokenizer()


class Counted(Counting):
    """An image processor that gives three tokens per image."""

    def tokens(self, place: str, data: bytes) -> list[int]:
        return [PLACE] * 3


class Replies:
    """An engine with scripted replies, which stores the images it receives."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        reply = self.replies[len(self.requests) - 1] + "<|im_end|>"
        ids = TOKENIZER.encode(reply, add_special_tokens=False)
        return Completion(ids, [-1.0] * len(ids), [VersionSpan(0, len(ids))], FinishReason.STOP)

    async def release(self, session: str) -> None: ...


def look(times: int) -> ToolResponse:
    """Look.

    Args:
        times: how often.
    """
    return ToolResponse("seen" if times else None, image=[BLUE] * max(1, times))


def roll(engine: Replies, chat: ChatFormat, task: Task, loop: str = "tool_agent") -> Rollout:
    run_config = config(loop, max_response_length=2000, max_parallel_calls=2)
    rolling = RolloutRunner(engine, chat, Toolbox([look], run_config.rollout.multi_turn), None, run_config)
    return asyncio.run(rolling.run(task, SamplingParams(), seed=0))


CHAT = ChatFormat(TOKENIZER, images=Counted())
TASK = Task(
    [{"role": "user", "content": [image_part(content_hash(RED)), {"type": "text", "text": "What is it?"}]}],
    images={content_hash(RED): RED},
)


def test_the_engine_is_shown_every_image_in_its_place():
    engine = Replies(call("look", times=2), "A blue square.")
    rollout = roll(engine, CHAT, TASK)
    assert (rollout.stop, rollout.error) == ("finished", None)
    (trajectory,) = rollout.trajectories
    prompt, turn, answer, last = trajectory.segments
    assert [len(part.media) for part in (prompt, turn, answer, last)] == [1, 0, 2, 0]
    assert trajectory.images == {content_hash(data): data for data in (RED, BLUE)}
    first, second = engine.requests
    assert [of_data_url(url) for url in first.images] == [RED]
    assert [of_data_url(url) for url in second.images] == [RED, BLUE, BLUE]
    context = trajectory.token_ids[: len(prompt) + len(turn) + len(answer)]
    assert second.token_ids[: len(context)] == context
    covered = [place for start in second.image_starts for place in range(start, start + 3)]
    assert covered == [place for place, token in enumerate(context) if token == PLACE]
    assert not any(on and token == PLACE for token, on in zip(trajectory.token_ids, trajectory.loss_mask, strict=True))
    part = image_part(content_hash(BLUE))
    assert trajectory.messages[2]["content"] == [part, part, {"type": "text", "text": "seen"}]


def test_tool_answer_with_only_an_image_and_two_calls_in_a_turn():
    engine = Replies(call("look", times=0) + call("look", times=1), "Done.")
    (trajectory,) = roll(engine, CHAT, TASK).trajectories
    part = image_part(content_hash(BLUE))
    assert [message["content"] for message in trajectory.messages[2:4]] == [
        [part],
        [part, {"type": "text", "text": "seen"}],
    ]
    assert [message["role"] for message in trajectory.messages[2:4]] == ["tool", "tool"]
    assert len(trajectory.segments[2].media) == 2


def test_react_puts_the_image_before_its_observation():
    engine = Replies('Action: look\nAction Input: {"times": 1}', "Final Answer: blue")
    (trajectory,) = roll(engine, CHAT, TASK, "react_agent").trajectories
    assert trajectory.segments[2].author is Author.TOOL
    assert trajectory.messages[-2]["content"] == [
        image_part(content_hash(BLUE)),
        {"type": "text", "text": "Observation: seen"},
    ]


def test_an_image_that_the_processor_refuses_is_an_error_the_model_reads():
    class Refusing(Counted):
        def tokens(self, place: str, data: bytes) -> list[int]:
            if data == BLUE:
                raise ImageError("it is too thin")
            return super().tokens(place, data)

    rollout = roll(Replies(call("look", times=1), "ok"), ChatFormat(TOKENIZER, images=Refusing()), TASK)
    assert [each.outcome for each in rollout.tool_calls] == [Outcome.TOOL_ERROR]
    assert "image that cannot be used" in rollout.tool_calls[0].result
    assert list(rollout.trajectories[0].media) == [content_hash(RED)]


def test_tool_image_for_a_text_model_ends_the_run():
    blind = ChatFormat(TOKENIZER, no_images="training on images is not supported")
    with pytest.raises(ConfigError, match="tool 'look' answered with an image: training on images is not"):
        roll(Replies(call("look", times=1)), blind, Task([{"role": "user", "content": "Look."}]))


def test_optional_image_for_a_text_model_becomes_a_note():
    blind = ChatFormat(TOKENIZER, no_images="training on images is not supported")
    result = ToolResult("seen", Outcome.OK, images=[BLUE], optional_images=True)
    shown = as_shown(ParsedCall("look", "{}"), result, blind)
    assert (shown.text, shown.images, shown.outcome) == (f"seen\n[image, {len(BLUE)} bytes]", (), Outcome.OK)
    assert as_shown(ParsedCall("look", "{}"), result, CHAT) is result


def test_custom_loop_without_images_generates_from_text():
    engine = Replies("Nothing.")
    roll(engine, CHAT, Task([{"role": "user", "content": "Look."}]))
    assert (engine.requests[0].images, engine.requests[0].image_starts) == ((), ())


def test_tools_that_ask_see_the_images_of_the_rollout():
    data = AgentData(TASK, [], "r", {content_hash(RED): RED})
    assert [image.size for image in data.image_data] == [(30, 20)]
    assert data_url(data.images[content_hash(RED)]) == data_url(RED)
