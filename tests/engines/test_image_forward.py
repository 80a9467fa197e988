"""Conversations with images: sampling over cached KV equals transformers' own forward of the complete context."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from transformers import AutoModelForImageTextToText
from vision_models import FAMILIES, picture, save_vision_model

from agentrl.chat.format import ChatFormat
from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.base import Completion, GenerateRequest, SamplingParams
from agentrl.engines.torch.engine import TorchEngine
from agentrl.engines.torch.image_forward import ImageRunner
from agentrl.engines.torch.loader import load_torch_engine
from agentrl.errors import ConfigError
from agentrl.models.images import ImageInputs, find_image_inputs
from agentrl.models.loading import load_tokenizer
from agentrl.types.messages import Message, image_part
from agentrl.utils.images import content_hash, data_url

LONGEST = 1000
IMAGE_ID = 261
RED, BLUE, WIDE = picture("red"), picture("blue", (24, 24)), picture("green", (90, 20))


@cache
def model_config(family: str) -> ModelConfig:
    return ModelConfig(path=str(save_vision_model(Path(mkdtemp()) / family, family)), dtype="float32")


def images_of(family: str) -> ImageInputs:
    images = find_image_inputs(model_config(family))
    assert images is not None
    return images


def engine_for(family: str) -> TorchEngine:
    config = RolloutConfig(device="cpu", max_num_seqs=4)
    return load_torch_engine(model_config(family), config, LONGEST, images_of(family))


@dataclass
class Talk:
    """A growing context, as in a conversation."""

    family: str
    ids: list[int] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chat = ChatFormat(load_tokenizer(model_config(self.family)), images=images_of(self.family))

    def add(self, *images: bytes, text: str = "Look.") -> None:
        names = {content_hash(data): data for data in images}
        content = [*(image_part(content_hash(data)) for data in images), {"type": "text", "text": text}]
        role = "tool" if self.ids else "user"
        message = Message(role=role, content=content)
        extend = self.chat.extend([message], (), turn_closed=False, images=names) if self.ids else None
        new = extend or self.chat.start([message], (), names)
        self.starts += [len(self.ids) + start for start in self.chat.image_starts(new, images)]
        self.ids += new
        self.images += images

    def request(self, seed: int = 0, num_tokens: int = 12, session: str = "s") -> GenerateRequest:
        sampling = SamplingParams(seed=seed, max_new_tokens=num_tokens)
        urls = tuple(map(data_url, self.images))
        return GenerateRequest(list(self.ids), sampling, session, images=urls, image_starts=tuple(self.starts))


@torch.inference_mode()
def plain_logprobs(talk: Talk, context: int) -> list[float]:
    """Log-probabilities of the tokens from `context` on, by one transformers forward of all tokens."""
    model = AutoModelForImageTextToText.from_pretrained(model_config(talk.family).path, dtype=torch.float32).eval()
    inputs = images_of(talk.family).inputs("<|image_pad|>", talk.images) if talk.images else {}
    ids = torch.tensor([talk.ids])
    types = {"mm_token_type_ids": (ids == IMAGE_ID).int()} if talk.images else {}
    logits = model(input_ids=ids, use_cache=False, **inputs, **types).logits[0]
    every = torch.log_softmax(logits, -1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return every[context - 1 :].tolist()


async def sampled(engine: TorchEngine, talk: Talk, **options: int) -> tuple[Completion, int]:
    """Sample a turn and append it; also returns the context length before it."""
    completion = await engine.generate(talk.request(**options))
    context = len(talk.ids)
    talk.ids += completion.token_ids
    return completion, context


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_three_turns_with_images_agree_with_one_plain_forward(family):
    async def run() -> None:
        engine, talk = engine_for(family), Talk(family)
        talk.add(RED, WIDE)
        turns = []
        for seed, images in ((1, [BLUE]), (2, []), (3, [RED, RED])):
            turns.append(await sampled(engine, talk, seed=seed))
            talk.add(*images)
        turns.append(await sampled(engine, talk, seed=4))
        for completion, context in turns:
            assert IMAGE_ID not in completion.token_ids  # a plain forward would treat it as an image
            expected = plain_logprobs(talk, context)[: len(completion.logprobs)]
            assert completion.logprobs == pytest.approx(expected, abs=1e-5)
        cached = [completion.num_cached_tokens for completion, _ in turns]
        # all tokens of a turn except the last, which was never an input
        assert cached == [0, *(context + len(turn.token_ids) - 1 for turn, context in turns[:-1])]
        assert engine.metrics()["cached_tokens"] == sum(cached)
        await engine.close()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_images_change_the_output_and_text_only_works(family):
    async def run() -> None:
        engine = engine_for(family)
        seen = []
        for images in ([RED], [picture("yellow")], []):
            talk = Talk(family)
            talk.add(*images)
            completion, context = await sampled(engine, talk, num_tokens=4)
            assert completion.logprobs == pytest.approx(plain_logprobs(talk, context), abs=1e-5)
            await engine.release("s")
            seen.append(completion.logprobs)
        assert seen[0] != seen[1]
        await engine.close()

    asyncio.run(run())


@pytest.mark.slow
def test_sampled_image_token_is_not_an_image():
    """Whether its KV was computed while sampling, or recomputed with the complete context."""

    async def run() -> None:
        engine, talk = engine_for("qwen2_5_vl"), Talk("qwen2_5_vl")
        talk.add(RED)
        await sampled(engine, talk, seed=1)
        talk.ids += [IMAGE_ID]  # as if the model had sampled it
        talk.add(BLUE)
        kept = await engine.generate(talk.request(seed=2))
        await engine.release("s")
        anew = await engine.generate(talk.request(seed=2))
        assert (anew.num_cached_tokens, list(anew.token_ids)) == (0, list(kept.token_ids))
        assert kept.num_cached_tokens > 0
        assert anew.logprobs == pytest.approx(kept.logprobs, abs=1e-5)
        await engine.close()

    asyncio.run(run())


@pytest.mark.slow
def test_session_with_changed_images_is_recomputed():
    async def run() -> None:
        engine, talk, other = engine_for("qwen2_5_vl"), Talk("qwen2_5_vl"), Talk("qwen2_5_vl")
        talk.add(RED)
        other.add(picture("yellow"))
        assert talk.ids == other.ids  # images of equal size have the same tokens
        first, _ = await sampled(engine, talk)
        other.ids += first.token_ids
        for each in (talk, other):
            each.add(text="And now?")
        assert talk.ids == other.ids
        second = await engine.generate(other.request())
        assert second.num_cached_tokens == 0
        await engine.release("s")
        assert (await engine.generate(other.request())).logprobs == second.logprobs
        await engine.close()

    asyncio.run(run())


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("images", "starts", "expected"),
    [
        ([RED], [3], "the tokens of an image do not start at 3"),
        ([RED], [], "1 images, but 0 start positions"),
        ([b"no image"], [7], "an image of the request: its 8 bytes are not an image"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(images, starts, expected):
    async def run() -> None:
        engine, talk = engine_for("qwen2_5_vl"), Talk("qwen2_5_vl")
        talk.add(RED)
        bad = GenerateRequest(talk.ids, images=tuple(map(data_url, images)), image_starts=starts)
        with pytest.raises(ValueError, match=expected):
            await engine.generate(bad)
        assert (await engine.generate(talk.request())).token_ids  # other requests still work
        await engine.close()

    asyncio.run(run())


def test_a_model_that_a_cache_changes_is_refused(monkeypatch):
    """For example, a model whose positions differ from its token indices."""
    monkeypatch.setattr(
        ImageRunner, "_positions", lambda self, seen: torch.zeros(3, 1, len(seen.token_ids) - seen.num_cached)
    )
    with pytest.raises(ConfigError, match="does not support images: with cached KV its logits differ"):
        engine_for("qwen2_5_vl")
