"""Converts the return values of tools to `Answer`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.tools.base import ToolError, ToolResponse
from agentrl.types.rollout import Outcome
from agentrl.utils.images import ImageError, read_image


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a tool: text and images (bytes) for the model, reward of the call, metrics to log, and outcome.

    Attributes:
        optional_images: what happens if the model does not accept images. True: the model gets a note in place of the
            images. False: the run ends.
    """

    text: str
    reward: float = 0.0
    metrics: dict[str, object] = field(default_factory=dict)
    images: Sequence[bytes] = ()
    outcome: Outcome = Outcome.OK
    optional_images: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call: outcome, text for the model, and the bytes of images for the model."""

    text: str
    outcome: Outcome
    reward: float = 0.0
    duration_s: float = 0.0
    metrics: dict[str, object] = field(default_factory=dict)
    images: Sequence[bytes] = ()
    started_s: float = 0.0
    optional_images: bool = False


def read_answer(returned: object) -> Answer:
    """Convert a tool's return value: text, a dict, a `ToolResponse`, or a tuple (one of these, reward, metrics).

    Raises:
        ToolError: bytes that are not text, an empty tuple, a tuple of more than 3 values, a reward that is not a finite
            number, an image that cannot be read, or a video.
    """
    if not isinstance(returned, tuple):
        return _with_reward(returned, None, None)
    if not 1 <= len(returned) <= 3:
        raise ToolError(f"the tool returned {len(returned)} values, expected (answer, reward, metrics)")
    return _with_reward(*returned, *[None] * (3 - len(returned)))


def _with_reward(response: object, reward: object, metrics: object) -> Answer:
    numbers = dict(metrics) if isinstance(metrics, Mapping) else {}
    return Answer(_text(response), _finite(reward), numbers, _images(response))


def _images(response: object) -> list[bytes]:
    if not isinstance(response, ToolResponse):
        return []
    if response.video:
        raise ToolError("the tool returned a video; videos are not supported")
    given: object = response.image
    images = given if isinstance(given, list | tuple) else [] if given is None else [given]
    try:
        return [read_image(image) for image in images]
    except ImageError as error:
        raise ToolError(f"the tool returned an image that cannot be used: {error}") from error


def _text(response: object) -> str:
    if isinstance(response, ToolResponse):
        response = "" if response.text is None else response.text
    if isinstance(response, (bytes, bytearray)):
        try:
            return response.decode()
        except UnicodeDecodeError:
            raise ToolError(f"the tool returned {len(response)} bytes that are not text") from None
    if isinstance(response, (dict, list)):
        return json.dumps(response, ensure_ascii=False, default=str)
    return response if isinstance(response, str) else str(response)


def _finite(reward: object) -> float:
    try:
        value = 0.0 if reward is None else float(reward)  # type: ignore[arg-type]  # failures are reported below
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ToolError(f"the tool returned the reward {reward!r}, expected a finite number")
    return value


def bounded(text: str, num_chars: int) -> str:
    """Shorten a long text to its first and its last `num_chars` characters.

    A later cut to `num_chars` characters (left, right or middle) gives the same text as a cut of the original. Lone
    surrogates, which tokenizers reject, become question marks.
    """
    if len(text) > 2 * num_chars:
        text = text[:num_chars] + text[-num_chars:]
    return text.encode("utf-8", "replace").decode()
