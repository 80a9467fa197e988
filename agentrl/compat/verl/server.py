"""verl's server manager for one rollout: it samples with agentrl's engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentrl.agent_loops.base import Generate, Recording
from agentrl.compat.verl.types import TokenOutput
from agentrl.engines.base import FinishReason, SamplingParams
from agentrl.errors import ConfigError, suggestion

_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "n": 1}
"""verl's sampling option -> its only allowed value, with which the option has no effect.

Another value of a penalty would make the reported log-probabilities wrong.
"""
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "max_tokens": "max_new_tokens",
    "max_new_tokens": "max_new_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
}
_IGNORED = {"logprobs"}  # log-probabilities are always returned


class ServerManager:
    """Provides `generate` with verl's signature, and records the sampled tokens."""

    def __init__(self, generate: Generate, sampling: SamplingParams) -> None:
        self.recording = Recording()
        self._generate = generate
        self._sampling = sampling
        self._conversations: dict[str, int] = {}

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, object],
        image_data: object = None,
        video_data: object = None,
        audio_data: object = None,
        mm_processor_kwargs: object = None,
        priority: object = None,
        **_: object,
    ) -> TokenOutput:
        """Sample a continuation of `prompt_ids`. Requests with the same `request_id` belong to one conversation.

        Raises:
            ConfigError: images, or an unsupported sampling parameter.
        """
        if image_data or video_data or audio_data:
            raise ConfigError.keyless(
                "server_manager.generate: image_data, video_data and audio_data are not supported"
            )
        sampling = sampling_of(sampling_params, self._sampling)
        context = list(prompt_ids)
        number = self._conversations.setdefault(request_id, len(self._conversations))
        completion = await self._generate(context, sampling, trajectory=number)
        self.recording.add(context, len(context), completion, sampling)
        versions = [span.version for span in completion.policy_versions]
        return TokenOutput(
            token_ids=list(completion.token_ids),
            log_probs=list(completion.logprobs),
            stop_reason="aborted" if completion.finish_reason is FinishReason.ABORT else "completed",
            extra_fields={
                "min_global_steps": min(versions, default=None),
                "max_global_steps": max(versions, default=None),
            },
        )


def sampling_of(given: Mapping[str, object], base: SamplingParams) -> SamplingParams:
    """Return `base` with the values that verl's sampling dictionary `given` contains.

    The stop tokens of the dictionary are added to the stop tokens in `base`, which come from the chat format. If both
    `base` and the dictionary limit the number of new tokens, the lower limit applies.

    Raises:
        ConfigError: an unknown key, or an unsupported value.
    """
    changes: dict[str, object] = {}
    for key, value in given.items():
        if key in _NAMES and value is not None:
            changes[_NAMES[key]] = value
        elif key not in _IGNORED and key not in _NAMES and value is not None and value != _NEUTRAL.get(key):
            known = "is not supported" if key in _NEUTRAL else suggestion(key, [*_NAMES, *_NEUTRAL])
            raise ConfigError.keyless(f"sampling_params: '{key}: {value}': {known}")
    if "stop" in changes:
        stop = changes["stop"]
        changes["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)  # type: ignore[arg-type]  # else a list
    changes["stop_token_ids"] = (*base.stop_token_ids, *changes.get("stop_token_ids", ()))  # type: ignore[misc]  # a list
    changed = replace(base, **changes)  # type: ignore[arg-type]  # the user's values
    limits = [limit for limit in (base.max_new_tokens, changed.max_new_tokens) if limit is not None]
    return replace(changed, max_new_tokens=min(limits, default=None))


def as_dictionary(sampling: SamplingParams) -> dict[str, object]:
    """Return the `sampling_params` that a verl loop's `run` gets."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "logprobs": True,
    }
