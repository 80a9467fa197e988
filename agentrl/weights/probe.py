"""Check that an engine samples from the published policy: the backend scores a few tokens that the engine sampled."""

from __future__ import annotations

from agentrl.backends.base import Backend
from agentrl.engines.base import Completion, Engine, GenerateRequest, SamplingParams
from agentrl.errors import AgentRLError
from agentrl.types.sample import Sample

CONTEXT = (1, 2, 3, 4, 5, 6, 7, 8)
MAX_MEAN_DIFF = 1.0
"""Largest accepted mean difference, in nats per token. Different kernels and dtypes cause about 0.01, bfloat16 versus
float32 up to 0.1. Misnamed, swapped or missing weights cause several nats. One training step changes the
weights too little to be detected, so even a smaller bound would not find an engine that missed one publication."""


class ProbeError(AgentRLError):
    """The engine does not sample from the backend's policy."""


class Probe:
    """Samples a few tokens after a fixed context (temperature 1); compares log-probabilities of engine and backend."""

    def __init__(self, backend: Backend, engine: Engine, num_tokens: int) -> None:
        self._backend, self._engine, self._num_tokens = backend, engine, num_tokens

    async def __call__(self, version: int) -> dict[str, float]:
        """Return the metrics `publish/probe_max_diff` and `publish/probe_mean_diff`, in nats.

        Raises:
            ProbeError: the mean difference is larger than rounding explains, or the tokens come from another version.
        """
        completion = await self._sampled(version)
        versions = {span.version for span in completion.policy_versions}
        if versions != {version}:
            raise ProbeError(f"version {version} was published, but the engine samples from {sorted(versions)}")
        scores = await self._backend.score([_sample(completion)])
        scored = scores.logprobs[0][len(CONTEXT) :]
        diffs = [abs(mine - theirs) for mine, theirs in zip(scored, completion.logprobs, strict=True)]
        mean = sum(diffs) / len(diffs)
        if not mean <= MAX_MEAN_DIFF:  # the condition is also true for NaN
            raise ProbeError(
                f"after version {version} was published, log-probabilities of engine and backend differ by"
                f" {mean:.3g} nats"
                f" per token, expected less than {MAX_MEAN_DIFF:g}: they do not have the same weights"
            )
        return {"publish/probe_max_diff": max(diffs), "publish/probe_mean_diff": mean}

    async def _sampled(self, version: int) -> Completion:
        session = f"probe-{version}"  # a separate session: an engine may reuse a session's KV cache of older weights
        sampling = SamplingParams(max_new_tokens=self._num_tokens, seed=version)
        try:
            return await self._engine.generate(GenerateRequest(CONTEXT, sampling, session))
        finally:
            await self._engine.release(session)


def _sample(completion: Completion) -> Sample:
    token_ids = [*CONTEXT, *completion.token_ids]
    mask = [*(0 for _ in CONTEXT), *(1 for _ in completion.token_ids)]
    logprobs = [*(0.0 for _ in CONTEXT), *completion.logprobs]
    zeros = [0.0] * len(mask)
    return Sample(token_ids, mask, [1.0] * len(mask), zeros, behaviour_logprobs=logprobs)
