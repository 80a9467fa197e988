"""Forward passes of a vision-language model over a conversation with images.

A forward pass computes only new tokens; the KV of earlier tokens is in transformers' cache.

Axes: T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from agentrl.engines.torch.kv_check import TOLERANCE
from agentrl.errors import ConfigError, Kind
from agentrl.models.images import ImageInputs
from agentrl.utils.images import ImageError, data_url, of_data_url, small_picture

GRID = "image_grid_thw"
"""Name of the processor output with an image's number of patches in time, height and width. These numbers determine
token positions."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An image whose tokens are at `start` to `end` of the context.

    Attributes:
        inputs: the model's inputs for the image.
        types: the token types of the image's tokens, for example the model's input `mm_token_type_ids`.
    """

    url: str
    start: int
    end: int
    inputs: Mapping[str, Tensor]
    types: Mapping[str, Tensor]


@dataclass(slots=True)
class ImageKV:
    """KV of one conversation: `cache` holds the KV of `token_ids[:num_cached]`.

    Attributes:
        shift: position minus token index, for the tokens after the last image.
    """

    cache: DynamicCache
    token_ids: list[int]
    images: Sequence[Placed] = ()
    num_cached: int = 0
    shift: int = 0


@dataclass(slots=True)
class ImageRunner:
    """Runner that forwards the new tokens of one conversation at a time.

    Args:
        model: a model loaded by `AutoModelForImageTextToText`.

    Raises:
        ConfigError: for a conversation with images, logits computed with cached KV differ from logits of a plain
            forward pass.
    """

    model: PreTrainedModel
    images: ImageInputs
    _image_id: int = field(init=False)

    def __post_init__(self) -> None:
        config = self.model.config
        self._image_id = getattr(config, "image_token_id", getattr(config, "image_token_index", -1))
        _check(self)

    def begin(self, token_ids: list[int], urls: Sequence[str], starts: Sequence[int]) -> ImageKV:
        """Return a new conversation without cached KV.

        Raises:
            ValueError: the image tokens of the prompt do not match `starts`.
        """
        if len(urls) != len(starts):
            raise ValueError(f"{len(urls)} images, but {len(starts)} start positions")
        cache = DynamicCache(config=self.model.config.get_text_config())
        return ImageKV(cache, token_ids, [self.placed(token_ids, *each) for each in zip(urls, starts, strict=True)])

    def placed(self, token_ids: Sequence[int], url: str, start: int) -> Placed:
        """Return the image whose tokens begin at `start`.

        Raises:
            ValueError: the image's tokens do not begin at `start`, or the image cannot be decoded.
        """
        try:
            data = of_data_url(url)
            for place in self.images.places:
                end = start + len(tokens := self.images.tokens(place, data))
                if tuple(token_ids[start:end]) == tuple(tokens):
                    return Placed(url, start, end, self.images.inputs(place, [data]), self.images.types(place, data))
        except ImageError as error:
            raise ValueError(f"an image of the request: {error}") from error
        raise ValueError(f"the tokens of an image do not start at {start}")

    def logits(self, seen: ImageKV) -> Tensor:
        """Next-token logits [V]; afterwards the KV of all tokens is cached."""
        first, positions = seen.num_cached, self._positions(seen)
        for start, end in self._pieces(seen):
            shown = [image for image in seen.images if start <= image.start < end]
            given = {} if positions is None else {"position_ids": positions[:, :, start - first : end - first]}
            output = self.model(
                input_ids=torch.tensor([seen.token_ids[start:end]], device=self.model.device),
                past_key_values=seen.cache,
                use_cache=True,
                logits_to_keep=1,
                **given,
                **self._inputs(shown),
                **_types(shown, start, end, self.model.device),
            )
            seen.num_cached = end
        logits: Tensor = output.logits[0, -1]
        return logits

    def _inputs(self, images: Sequence[Placed]) -> dict[str, Tensor]:
        names = images[0].inputs if images else ()
        made = {name: torch.cat([image.inputs[name] for image in images]).to(self.model.device) for name in names}
        dtype = self.model.dtype
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in made.items()}

    def _pieces(self, seen: ImageKV) -> Iterator[tuple[int, int]]:
        """Token ranges, one per forward pass. An image token that the model sampled gets a forward pass of its own."""
        start, end = seen.num_cached, len(seen.token_ids)
        covered = {place for image in seen.images for place in range(image.start, image.end)}
        sampled = [
            place for place in range(start, end) if seen.token_ids[place] == self._image_id and place not in covered
        ]
        return pairwise(sorted({start, end, *sampled, *(place + 1 for place in sampled)}))

    def _positions(self, seen: ImageKV) -> Tensor | None:
        """Positions [3, 1, T] of the uncached tokens; None if the model's positions do not depend on image shapes."""
        base = self.model.base_model
        if not hasattr(base, "get_rope_index"):
            return None
        new = [image for image in seen.images if image.start >= seen.num_cached]
        if new:
            length = len(seen.token_ids)
            positions, shifts = base.get_rope_index(
                torch.tensor([seen.token_ids]),
                mm_token_type_ids=_types(seen.images, 0, length, torch.device("cpu"))["mm_token_type_ids"],
                image_grid_thw=torch.cat([image.inputs[GRID] for image in seen.images]),
            )
            seen.shift = int(shifts)
            of_new: Tensor = positions[:, :, seen.num_cached :].to(self.model.device)
            return of_new
        plain = torch.arange(seen.num_cached, len(seen.token_ids), device=self.model.device) + seen.shift
        return plain.expand(3, 1, -1)


def _types(images: Sequence[Placed], start: int, end: int, device: torch.device) -> dict[str, Tensor]:
    """Token types [1, T] of the tokens `start` to `end`, under the names that the processor uses."""
    names = images[0].types if images else ()
    types = {name: torch.zeros(1, end - start, dtype=torch.long) for name in names}
    for image in images:
        for name, value in image.types.items():
            types[name][0, image.start - start : image.end - start] = value
    return {name: value.to(device) for name, value in types.items()}


@torch.inference_mode()
def _check(runner: ImageRunner) -> None:
    """Check that cached KV does not change the logits of a second turn; each of the two turns has an image.

    Raises:
        ConfigError: the logits differ too much from those of a plain forward pass over both turns.
    """
    model, data = runner.model, small_picture()
    text = [token for token in range(40, 60) if token != runner._image_id][:6]
    turn = [*text, *runner.images.tokens(runner.images.places[0], data), *text]
    url, ids, starts = data_url(data), [*turn, *turn], [len(text), len(turn) + len(text)]
    seen = runner.begin(ids[: len(turn) + 2], [url], starts[:1])
    runner.logits(seen)
    seen.token_ids, seen.images = ids, [runner.placed(ids, url, start) for start in starts]
    ours = runner.logits(seen)
    shown = {**runner._inputs(seen.images), **_types(seen.images, 0, len(ids), model.device)}
    plain = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False, **shown).logits[0, -1]
    worst = (ours - plain).abs().max() / plain.std()
    if not worst <= TOLERANCE.get(model.dtype, 0.2):
        raise ConfigError.at(
            "model.path",
            Kind.NOT_SUPPORTED,
            f"model.path: {type(model).__name__} does not support images: with cached KV its logits differ by "
            f"{worst:.1e} standard deviations from a plain forward pass",
        )
