"""Scheduler for requests with images. It runs one request at a time, so results never depend on other requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from agentrl.engines.base import FinishReason
from agentrl.engines.torch.image_forward import ImageKV, ImageRunner
from agentrl.engines.torch.jobs import Job
from agentrl.engines.torch.sampling import Draw, sample
from agentrl.engines.torch.scheduler import non_finite
from agentrl.engines.torch.stopping import DecodingTokenizer, end_of


class ImageConversations:
    """KV of sessions until their release. Beyond `capacity` sessions, the least recently used session is evicted."""

    def __init__(self, runner: ImageRunner, capacity: int) -> None:
        self.num_evicted = 0
        self._runner = runner
        self._capacity = capacity
        self._sessions: dict[str, ImageKV] = {}  # least recently used first

    @property
    def kv_tokens(self) -> int:
        """Number of tokens with cached KV."""
        return sum(seen.num_cached for seen in self._sessions.values())

    def open(self, job: Job) -> ImageKV:
        """The job's conversation, with the cached KV of its context.

        Raises:
            ValueError: an image's tokens are not at the position that the request gives.
        """
        request = job.request
        seen = self._sessions.pop(request.session, None)
        if seen is None or not self._continues(seen, job):
            seen = self._runner.begin(job.token_ids, request.images, request.image_starts)
        else:
            known = len(seen.images)
            new = zip(request.images[known:], request.image_starts[known:], strict=True)
            seen.images = [*seen.images, *(self._runner.placed(job.token_ids, url, start) for url, start in new)]
            seen.token_ids = job.token_ids
        if request.session:
            self._sessions[request.session] = seen
            if len(self._sessions) > self._capacity:
                self._sessions.pop(next(iter(self._sessions)))
                self.num_evicted += 1
        return seen

    def _continues(self, seen: ImageKV, job: Job) -> bool:
        """Whether the context extends the cached tokens and images."""
        request, num_cached = job.request, seen.num_cached
        same = list(zip(request.images, request.image_starts, strict=True))[: len(seen.images)] == [
            (image.url, image.start) for image in seen.images
        ]
        later = request.image_starts[len(seen.images) :]
        return (
            same
            and all(start >= num_cached for start in later)
            and num_cached < len(job.token_ids)
            and seen.token_ids[:num_cached] == job.token_ids[:num_cached]
        )

    def release(self, session: str) -> None:
        """Drop the KV of a finished conversation."""
        self._sessions.pop(session, None)

    def forget_all(self) -> None:
        """Drop all KV."""
        self._sessions.clear()


class ImageScheduler:
    """Scheduler that runs jobs one after the other, higher priorities first; `step` samples one token."""

    def __init__(self, runner: ImageRunner, max_num_seqs: int, tokenizer: DecodingTokenizer | None) -> None:
        self.conversations = ImageConversations(runner, max_num_seqs)
        self.version = 0
        self.counters: Counter[str] = Counter()
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self._runner = runner
        self._seen: ImageKV | None = None  # conversation of the running job
        self._tokenizer = tokenizer

    @property
    def jobs(self) -> list[Job]:
        """All jobs that have not ended."""
        return [*self.running, *self.waiting]

    def step(self) -> bool:
        """Sample one token for the current job. Return False if no job is left."""
        if not self.running and self.waiting:
            job = max(self.waiting, key=lambda job: job.request.priority)  # equal priorities: first come, first served
            self.waiting.remove(job)
            self.running.append(job)
        if self.running:
            self._sample(self.running[0])
        return bool(self.running or self.waiting)

    def abort(self, chosen: Callable[[Job], bool]) -> None:
        """End the jobs that `chosen` selects, with the tokens so far, and drop their KV."""
        for job in [job for job in self.jobs if chosen(job)]:
            self._leave(job)
            self.conversations.release(job.request.session)
            job.resolve(job.completion(FinishReason.ABORT))

    def fail_all(self, error: Exception) -> None:
        """End every job with an error."""
        jobs = self.jobs
        for job in jobs:
            self._leave(job)
        self.conversations.forget_all()
        for job in jobs:
            job.resolve(error)

    def break_stall(self) -> None:
        """Do nothing: no job waits for the KV memory of another job."""

    def weights_changed(self, version: int) -> None:
        """Set the policy version of later tokens, and drop all KV."""
        self.version = version
        self.conversations.forget_all()
        self._seen = None

    def _sample(self, job: Job) -> None:
        if self._seen is None:
            try:
                self._seen = self.conversations.open(job)
            except ValueError as error:
                self._leave(job)
                job.resolve(error)
                return
            job.num_reused = 0 if job.logprobs else self._seen.num_cached
            self.counters["prompt_tokens"] += len(job.token_ids)
            self.counters["cached_tokens"] += job.num_reused
        num_new = len(job.token_ids) - self._seen.num_cached
        logits = self._runner.logits(self._seen)
        self.counters["forwarded_tokens"] += num_new
        self.counters["decode_steps" if num_new == 1 else "prefill_steps"] += 1
        draw = Draw(job.request.sampling, job.seed, len(job.logprobs))
        (token_id,), (logprob,) = sample(logits[None], [draw])
        self._sampled(job, token_id, logprob)

    def _sampled(self, job: Job, token_id: int, logprob: float) -> None:
        if token_id < 0:
            self._leave(job)
            self.conversations.release(job.request.session)
            job.resolve(non_finite(job, self.version))
            return
        job.add(token_id, logprob, self.version)
        self.counters["sampled_tokens"] += 1
        if ended := end_of(job, self._tokenizer):
            self._leave(job)
            job.resolve(job.completion(*ended))

    def _leave(self, job: Job) -> None:
        if job in self.running:
            self.running.remove(job)
            self._seen = None
        else:
            self.waiting.remove(job)
