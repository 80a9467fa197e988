import asyncio
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algos.off_policy.mismatch import WatchedLoss, moments
from agentrl.backends.base import StepStats
from agentrl.telemetry.timing import Timer
from agentrl.trainer.learner import Learner, StepHooks, mini_batches, named
from agentrl.types.sample import Sample


def sample(uid: str) -> Sample:
    return Sample([1, 2], [0, 1], [1.0, 1.0], [0.0, 1.0], uid=uid)


class CountingBackend:
    """Reports the number of samples of each update."""

    def __init__(self):
        self.batches = []

    async def train_step(self, samples, loss):
        self.batches.append([each.uid for each in samples])
        return StepStats({"loss": float(len(samples))})


def learn(backend, samples, step=0, **options) -> dict[str, float]:
    options = {"mini_batch_groups": None, "epochs": 1, "seed": 0} | options
    return asyncio.run(Learner(backend, None, **options)(samples, step))


def test_hooks_run_in_the_order_of_their_phases_and_each_is_timed():
    ran, clock = [], iter(range(100))

    def learning(name):
        async def run(samples, step):
            ran.append((name, step))
            return {f"{name}/loss": 1.0, "last": len(ran)}

        return run

    def publishing(name):
        async def run(version):
            ran.append((name, version))

        return run

    hooks = StepHooks(
        Timer(lambda: float(next(clock))),
        publish=named(publish=publishing("publish")),
        before_publish=named(gpu_return=publishing("gpu_return")),
        after_update=named(reference_sync=None, reward_model=learning("reward_model")),
        update=named(learn=learning("learn")),
        before_update=named(kl_controller=learning("kl_controller"), critic=learning("critic")),
    )

    async def step():
        metrics = await hooks.run_learn([], 3)
        await hooks.run_publish(4)
        return metrics

    learnt = {"kl_controller/loss": 1.0, "critic/loss": 1.0, "learn/loss": 1.0, "reward_model/loss": 1.0, "last": 4}
    assert asyncio.run(step()) == learnt
    names = ["kl_controller", "critic", "learn", "reward_model", "gpu_return", "publish"]
    assert hooks.names == names
    assert ran == [*((name, 3) for name in names[:4]), *((name, 4) for name in names[4:])]
    assert hooks.timer.take() == {f"timing_s/{name}": 1.0 for name in names}


def test_a_run_that_trains_nothing_has_no_hooks():
    hooks = StepHooks(Timer())
    assert (asyncio.run(hooks.run_learn([sample("a")], 0)), hooks.names) == ({}, [])


def test_the_first_steps_of_a_warm_up_update_nothing():
    backend = CountingBackend()
    assert [learn(backend, [sample("a")], step, warmup=2) == {} for step in range(4)] == [True, True, False, False]
    assert len(backend.batches) == 2


@given(st.lists(st.integers(0, 6).map(str)), st.integers(1, 4), st.integers(0, 9))
def test_every_sample_is_in_one_mini_batch_and_no_group_is_cut(uids, num_groups, seed):
    samples = [sample(uid) for uid in uids]
    batches = list(mini_batches(samples, num_groups, seed))
    assert Counter(id(each) for batch in batches for each in batch) == Counter(map(id, samples))
    assert all(len({each.uid for each in batch}) <= num_groups for batch in batches)
    homes = [{each.uid for each in batch} for batch in batches]
    assert sum(map(len, homes)) == len(set(uids))


def test_by_default_a_step_is_one_update():
    backend = CountingBackend()
    metrics = learn(backend, [sample("a"), sample("b"), sample("a")])
    assert backend.batches == [["a", "b", "a"]]
    assert metrics == {"actor/loss": 3.0, "actor/updates": 1.0}


def test_epochs_reshuffle_and_metrics_are_means_over_updates():
    backend = CountingBackend()
    metrics = learn(backend, [sample(uid) for uid in "abcdef"], mini_batch_groups=2, epochs=2)
    assert [len(batch) for batch in backend.batches] == [2] * 6
    assert sorted("".join(map("".join, backend.batches[:3]))) == list("abcdef")
    assert sorted("".join(map("".join, backend.batches[3:]))) == list("abcdef")
    assert backend.batches[:3] != backend.batches[3:]
    assert metrics == {"actor/loss": 2.0, "actor/updates": 6.0}


class SkippingBackend:
    """Skips every second update; the other updates have an extra metric."""

    def __init__(self):
        self.num_updates = 0

    async def train_step(self, samples, loss):
        self.num_updates += 1
        if self.num_updates % 2:
            return StepStats({"num_tokens": 0.0, "skipped_updates": 1.0})
        return StepStats({"loss": 3.0, "num_tokens": 4.0, "skipped_updates": 0.0})


def test_skipped_updates_are_counted_and_dilute_no_mean():
    metrics = learn(SkippingBackend(), [sample(uid) for uid in "abcd"], mini_batch_groups=1)
    assert metrics == {"actor/loss": 3.0, "actor/num_tokens": 2.0, "actor/skipped_updates": 2.0, "actor/updates": 4.0}


class OverflowingBackend:
    """The first update overflows and is skipped; the second has a non-finite gradient and is not skipped."""

    def __init__(self):
        self.updates = iter([(math.nan, math.inf, 1.0), (3.0, 2.0, 0.0), (5.0, math.inf, 0.0)])

    async def train_step(self, samples, loss):
        return StepStats(dict(zip(("loss", "grad_norm", "skipped_updates"), next(self.updates), strict=True)))


def test_overflowed_values_of_skipped_updates_are_in_no_mean():
    backend = OverflowingBackend()
    metrics = learn(backend, [sample(uid) for uid in "ab"], mini_batch_groups=1)
    assert metrics == {
        "actor/loss": 3.0,
        "actor/grad_norm": 2.0,
        "actor/skipped_updates": 1.0,
        "actor/updates": 2.0,
    }
    assert learn(backend, [sample("c")])["actor/grad_norm"] == math.inf


class MeasuringBackend:
    """Records the samples of each update, and returns loss metrics for one token per sample."""

    def __init__(self):
        self.given = []

    async def train_step(self, samples, loss):
        self.given.append((list(samples), loss))
        watched = isinstance(loss, WatchedLoss)
        mean = float(len(self.given)) / 10
        found = moments(torch.tensor([[mean]]), torch.tensor([[True]])) if watched else {}
        return StepStats({"loss": 1.0, "skipped_updates": 1.0, **{name: float(each) for name, each in found.items()}})


def test_mismatch_uses_only_the_first_update_even_if_skipped():
    backend = MeasuringBackend()
    metrics = learn(backend, [sample(uid) for uid in "abcd"], mini_batch_groups=1, epochs=2)
    assert [isinstance(loss, WatchedLoss) for _, loss in backend.given] == [True] + [False] * 7
    assert backend.given[0][1].version == 0
    assert metrics["mismatch/mean"] == pytest.approx(0.1)
    assert metrics["mismatch/ess"] == pytest.approx(1)
    assert not any(name.startswith("actor/mismatch") for name in metrics)


def test_the_mismatch_of_scored_samples_is_of_all_their_tokens():
    backend = MeasuringBackend()
    scored = [replace(sample(uid), behaviour_logprobs=[0, -1], old_logprobs=[0, -1.5]) for uid in "ab"]
    metrics = learn(backend, scored, mini_batch_groups=1)
    assert metrics["mismatch/mean"] == pytest.approx(0.5)
    assert not any(isinstance(loss, WatchedLoss) for _, loss in backend.given)


def test_updates_use_corrected_samples_and_mismatch_uses_sampled_ones():
    def correct(samples):
        return [replace(each, importance_weights=[0, 2]) for each in samples[1:]], {"correction/ess": 0.5}

    backend = MeasuringBackend()
    scored = [replace(sample("a"), behaviour_logprobs=[0, -1], old_logprobs=[0, -1 - far]) for far in (1, 3)]
    metrics = learn(backend, scored, correct=correct)
    assert [each.importance_weights for each in backend.given[0][0]] == [[0, 2]]
    assert metrics["correction/ess"] == 0.5
    assert metrics["mismatch/mean"] == pytest.approx(2)


def test_a_step_without_trainable_samples_makes_no_update():
    backend = CountingBackend()
    assert learn(backend, []) == {"actor/updates": 0.0}
    assert backend.batches == []
