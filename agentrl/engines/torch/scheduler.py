"""Continuous batching: chooses the requests of each prefill or decode step."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from agentrl.engines.base import FinishReason
from agentrl.engines.torch.forward import Limits, Row, Runner
from agentrl.engines.torch.jobs import Job, KVSession, conversation_of, identical_contexts
from agentrl.engines.torch.kv_cache import Conversations
from agentrl.engines.torch.sampling import Draw, sample
from agentrl.engines.torch.stopping import DecodingTokenizer, end_of

_LOGGER = logging.getLogger(__name__)

MAX_PREFILLS_IN_A_ROW = 8
"""Maximum number of consecutive prefill steps. With fixed shapes, prefill runs before decode, so that decode steps have
more rows."""

NOTHING: Mapping[Job, int] = {}


class NonFiniteLogitsError(RuntimeError):
    """The model's logits are NaN; the message names the session. Other requests continue."""


def non_finite(job: Job, version: int) -> NonFiniteLogitsError:
    """Error for a job whose logits were NaN under policy version `version`."""
    return NonFiniteLogitsError(
        f"the model's logits are NaN in session '{job.request.session}' after {len(job.token_ids)} tokens, with the"
        f" weights of step {version}: weights diverged (see actor.optim.lr) or overflow (see rollout.dtype)"
    )


class Scheduler:
    """Scheduler of jobs, used only by the engine's thread; `step` computes one step."""

    def __init__(
        self, runner: Runner, conversations: Conversations, limits: Limits, tokenizer: DecodingTokenizer | None
    ) -> None:
        self.runner = runner
        self.conversations = conversations
        self.version = 0
        self.counters: Counter[str] = Counter()
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self._parked: list[Job] = []  # waiting for other jobs to compute a shared prefix
        self._limits = limits
        self._tokenizer = tokenizer
        self._prefills_in_a_row = 0

    @property
    def jobs(self) -> list[Job]:
        """All jobs that have not ended."""
        return [*self.running, *self._parked, *self.waiting]

    def step(self) -> bool:
        """Start waiting jobs that fit and compute one step; False if there is nothing to compute."""
        self._admit()
        prefilling = [job for job in self.running if conversation_of(job).num_cached < len(job.token_ids) - 1]
        ready = [job for job in self.running if conversation_of(job).num_cached == len(job.token_ids) - 1]
        if not self._limits.decode.fixed:
            self._step_together(prefilling, ready)
        elif prefilling and (not ready or self._prefills_in_a_row < MAX_PREFILLS_IN_A_ROW):
            self._prefills_in_a_row += 1
            self._prefill(*self._plan_prefill(prefilling))
        elif ready:
            self._prefills_in_a_row = 0
            self._decode_all(ready)
        return bool(prefilling or ready)

    def abort(self, chosen: Callable[[Job], bool]) -> None:
        """End the jobs that `chosen` selects, with the tokens so far, and drop their KV."""
        for job in [job for job in self.jobs if chosen(job)]:
            self._leave(job, self.conversations.drop)
            job.resolve(job.completion(FinishReason.ABORT))

    def fail_all(self, error: Exception) -> None:
        """End every job with an error. Drop all KV, because the KV may be incomplete."""
        jobs = self.jobs
        for job in jobs:
            self._leave(job, self.conversations.drop)
        self.conversations.forget_all([])
        for job in jobs:
            job.resolve(error)

    def break_stall(self) -> None:
        """Evict an idle conversation if the reservations of idle conversations block all waiting jobs.

        Only deterministic mode reserves blocks for idle conversations. The evicted conversation is recomputed later,
        which may change the last bits of its KV. `evicted_sessions` counts the eviction, so that the run's
        environment.json can report it.
        """
        if self.conversations.evict_idle():
            _LOGGER.warning(
                "open conversations hold all %d slots: one is evicted, so this run is not bitwise reproducible; raise"
                " rollout.max_num_seqs",
                self._limits.max_num_seqs,
            )

    def weights_changed(self, version: int) -> None:
        """Set the policy version of later tokens; running jobs recompute their KV."""
        self.version = version
        self.conversations.forget_all([conversation_of(job) for job in self.running])

    def _admit(self) -> None:
        """Start waiting jobs that fit, ordered by priority, then by arrival.

        After the first job that does not fit, only jobs of sessions with a reservation are started. Otherwise these
        sessions would wait for the first job, while that job waits until they release their memory: a deadlock.
        """
        blocked = False
        for job in sorted(self.waiting, key=lambda job: -job.request.priority):
            if len(self.running) >= self._limits.max_num_seqs:
                return
            if blocked and not self.conversations.has_room(job.request.session):
                continue
            context = job.token_ids[:-1]  # the first decode step computes KV and logits of the last token
            conversation = self.conversations.open(job.request.session)
            if self.conversations.must_wait(conversation, context):
                self.waiting.remove(job)
                self._parked.append(job)
            elif self.conversations.reserve(conversation, job.max_length):
                self._start(job, conversation, context)
                self.waiting.remove(job)  # removed last: if the start fails, `fail_all` finds the job
            else:
                blocked = True

    def _start(self, job: Job, conversation: KVSession, context: Sequence[int]) -> None:
        job.conversation = conversation
        self.conversations.begin(conversation, context)
        conversation.token_ids = job.token_ids
        job.mark = hash(tuple(job.token_ids))
        job.num_reused = conversation.num_cached if self.runner.kv_reuse else 0
        self.counters["prompt_tokens"] += len(job.token_ids)
        self.counters["cached_tokens"] += job.num_reused
        self.running.append(job)
        self._prefill_done(job)

    def _step_together(self, prefilling: Sequence[Job], ready: Sequence[Job]) -> None:
        """Prefill and decode in one forward pass to save the fixed cost of a pass (Sarathi-Serve, arXiv:2403.02310).

        A job whose prefill ends in this step decodes its first token in the same forward pass.
        """
        rows, parts = self._plan_prefill(prefilling)
        decoding = [*ready, *(job for job, end in parts.items() if end == len(job.token_ids) - 1)]
        if decoding:
            self._decode_all(decoding, rows, parts)
        elif rows:
            self._prefill(rows, parts)

    def _prefill(self, rows: Sequence[Row], parts: Mapping[Job, int]) -> None:
        self.runner.prefill(rows, self._limits.prefill)
        self._prefilled(rows, parts)

    def _prefilled(self, rows: Sequence[Row], parts: Mapping[Job, int]) -> None:
        self.counters["prefill_steps"] += bool(parts)
        self.counters["forwarded_tokens"] += sum(row.end - row.start for row in rows)
        for job, end in parts.items():
            conversation_of(job).num_cached = end
            self._prefill_done(job)

    def _plan_prefill(self, jobs: Iterable[Job]) -> tuple[list[Row], dict[Job, int]]:
        """Rows of one prefill step, oldest job first, and the position up to which the step prefills each job.

        A job may fill several rows of one step, because in every layer all keys are written before a query reads them.
        """
        shape = self._limits.prefill
        rows: list[Row] = []
        parts: dict[Job, int] = {}
        columns = shape.columns
        for same in identical_contexts(jobs):
            start, last = conversation_of(same[0]).num_cached, len(same[0].token_ids) - 1
            if not rows and not shape.fixed:
                columns = min(shape.rows * shape.columns, last - start)
            while start < last and (not rows or (len(rows) + 1) * columns <= shape.rows * shape.columns):
                end = min(start + columns, last)
                rows.append(self._row(same, start, end))
                parts |= dict.fromkeys(same, end)
                start = end
        return rows, parts

    def _row(self, same: Sequence[Job], start: int, end: int) -> Row:
        """Row of jobs with identical contexts."""
        for job in same:
            self.conversations.extend(conversation_of(job), end)
        blocks, *copies = (conversation_of(job).blocks for job in same)
        return Row(same[0].token_ids, start, end, blocks, copies)

    def _prefill_done(self, job: Job) -> None:
        conversation = conversation_of(job)
        if conversation.num_cached == len(job.token_ids) - 1:
            self.conversations.prefilled(conversation)
            self._unpark()

    def _unpark(self) -> None:
        self.waiting[:0], self._parked = self._parked, []

    def _decode_all(self, jobs: Sequence[Job], beside: Sequence[Row] = (), parts: Mapping[Job, int] = NOTHING) -> None:
        """Decode one token for every ready job, in batches of similar length to reduce padding."""
        rows, ready = self._limits.decode.rows, identical_contexts(jobs)
        if len(ready) > rows or self._limits.decode.fixed:  # rows of similar length next to each other
            ready = sorted(ready, key=lambda same: len(same[0].token_ids))
        self._decode(ready[:rows], beside, parts)
        for first in range(rows, len(ready), rows):
            self._decode(ready[first : first + rows])

    def _decode(
        self, ready: Sequence[Sequence[Job]], beside: Sequence[Row] = (), parts: Mapping[Job, int] = NOTHING
    ) -> None:
        rows = [self._row(same, len(same[0].token_ids) - 1, len(same[0].token_ids)) for same in ready]
        logits = self.runner.decode(rows, self._limits.decode, beside)
        self._prefilled(beside, parts)
        jobs = [job for same in ready for job in same]
        if len(jobs) > len(ready):
            sizes = torch.tensor([len(same) for same in ready], device=logits.device)
            logits = logits.repeat_interleave(sizes, dim=0, output_size=len(jobs))
        draws = [Draw(job.request.sampling, job.seed, len(job.logprobs)) for job in jobs]
        token_ids, logprobs = sample(logits, draws)
        self.counters["decode_steps"] += 1
        self.counters["forwarded_tokens"] += len(rows) if self.runner.kv_reuse else sum(row.end for row in rows)
        for job, token_id, logprob in zip(jobs, token_ids, logprobs, strict=True):
            conversation_of(job).num_cached += 1
            self._sampled(job, token_id, logprob)

    def _sampled(self, job: Job, token_id: int, logprob: float) -> None:
        if token_id < 0:
            return self._fail_non_finite(job)
        job.add(token_id, logprob, self.version)
        self.counters["sampled_tokens"] += 1
        if ended := end_of(job, self._tokenizer):
            self._finish(job, *ended)
        return None

    def _finish(self, job: Job, reason: FinishReason, matched: str | None) -> None:
        self._leave(job, self.conversations.end)
        job.resolve(job.completion(reason, matched))

    def _fail_non_finite(self, job: Job) -> None:
        blocks = conversation_of(job).blocks.tolist()
        self._leave(job, self.conversations.drop)
        self.runner.store.clear_blocks(
            [0, *(block for block in blocks if not self.conversations.allocator.is_held(block))]
        )
        job.resolve(non_finite(job, self.version))

    def _leave(self, job: Job, part_with: Callable[[KVSession], None]) -> None:
        for queue in (self.running, self.waiting, self._parked):
            if job in queue:
                queue.remove(job)
        if job.conversation is not None:
            part_with(job.conversation)
        self._unpark()  # parked jobs may have waited for this job
