"""Contract tests for every backend. A test module defines a `make_backend` fixture and imports these tests."""

from __future__ import annotations

import asyncio
import io
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import make_samples, with_returns
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.algos.losses.value import ValueLoss
from agentrl.backends.base import Backend

MakeBackend = Callable[..., Backend]
"""(trainable=True, value_head=False, **changes to the actor section) -> the same tiny model on every call."""

SFT = PolicyLoss("sft")
VALUES = ValueLoss(cliprange_value=10)


def weights_of(backend: Backend) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in backend.weights()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_scores_are_aligned_with_tokens(make_backend: MakeBackend):
    backend = make_backend()
    samples = make_samples(5)
    scores = asyncio.run(backend.score(samples))
    for sample, logprobs, entropy in zip(samples, scores.logprobs, scores.entropy, strict=True):
        assert len(logprobs) == len(entropy) == len(sample.token_ids)
        for trained, logprob, nats in zip(sample.loss_mask, logprobs, entropy, strict=True):
            assert (logprob < 0 < nats) if trained else (logprob == nats == 0)


def test_score_changes_nothing(make_backend: MakeBackend):
    backend = make_backend()
    before = weights_of(backend)
    first = asyncio.run(backend.score(make_samples(3)))
    assert asyncio.run(backend.score(make_samples(3))) == first
    assert equal(weights_of(backend), before)


def test_reference_policy_is_not_trained(make_backend: MakeBackend):
    backend, samples = make_backend(), make_samples(3)
    before = asyncio.run(backend.score(samples))
    asyncio.run(backend.train_step(samples, SFT))
    assert asyncio.run(backend.score(samples)) != before
    if held := backend.reference_score():
        assert asyncio.run(held(samples)) == before


def test_training_raises_the_likelihood_of_what_is_imitated(make_backend: MakeBackend):
    backend = make_backend()
    samples = [replace(sample, advantages=[float(x) for x in sample.loss_mask]) for sample in make_samples(4)]
    losses = [asyncio.run(backend.train_step(samples, SFT)).metrics["loss"] for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]
    scores = asyncio.run(backend.score(samples))
    mean_nll = -sum(map(sum, scores.logprobs)) / sum(sample.num_trained_tokens for sample in samples)
    assert mean_nll < losses[-1]  # the scores come from the updated weights


def test_update_statistics_are_reported(make_backend: MakeBackend):
    samples = make_samples(6)
    metrics = asyncio.run(make_backend(ppo_micro_batch_size_per_gpu=2).train_step(samples, SFT)).metrics
    assert metrics["num_tokens"] == sum(sample.num_trained_tokens for sample in samples)
    assert metrics["num_micro_batches"] in (3, 4)  # each of two processes may have a micro-batch that is not full
    assert metrics["grad_norm"] > 0
    assert metrics["lr"] > 0
    assert metrics["skipped_updates"] == 0
    assert {"loss", "nll", "entropy"} <= metrics.keys()


@pytest.mark.parametrize("advantage", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(make_backend: MakeBackend, advantage: float):
    backend, untouched = make_backend(), make_backend()
    broken = [replace(sample, advantages=[advantage] * len(sample.token_ids)) for sample in make_samples(2)]
    before = weights_of(backend)
    assert asyncio.run(backend.train_step(broken, SFT)).metrics["skipped_updates"] == 1
    assert equal(weights_of(backend), before)
    for one in (backend, untouched):
        asyncio.run(one.train_step(make_samples(3), SFT))
    assert equal(weights_of(backend), weights_of(untouched))


def test_step_ended_by_an_error_leaves_no_state(make_backend: MakeBackend):
    class Fails(PolicyLoss):
        def __call__(self, batch):
            failing.append(batch)
            if len(failing) == 2:
                raise ValueError("a mistake in the user's loss")
            return super().__call__(batch)

    failing: list[object] = []
    backend, untouched = (make_backend(ppo_micro_batch_size_per_gpu=2) for _ in range(2))
    with pytest.raises(ValueError, match="user's loss"):
        asyncio.run(backend.train_step(make_samples(4), Fails("sft")))
    for one in (backend, untouched):
        asyncio.run(one.train_step(make_samples(3), SFT))
    assert equal(weights_of(backend), weights_of(untouched))


def test_a_sample_that_trains_nothing_changes_nothing(make_backend: MakeBackend):
    backend, other = (make_backend(ppo_micro_batch_size_per_gpu=1) for _ in range(2))
    shortest, *samples = sorted(make_samples(4), key=lambda sample: len(sample.token_ids))
    # the shortest sample is assigned last, so the others are on the same ranks as without it
    silent = replace(shortest, loss_mask=[0] * len(shortest.token_ids), rollout_id="silent")
    asyncio.run(backend.train_step([*samples, silent], replace(SFT, aggregation="seq-mean-token-mean")))
    asyncio.run(other.train_step(samples, replace(SFT, aggregation="seq-mean-token-mean")))
    assert equal(weights_of(backend), weights_of(other))


def test_batch_without_trained_tokens_is_a_skipped_update(make_backend: MakeBackend):
    backend = make_backend()
    silent = [replace(sample, loss_mask=[0] * len(sample.token_ids)) for sample in make_samples(2)]
    before = weights_of(backend)
    for samples in ([], silent):
        assert asyncio.run(backend.train_step(samples, SFT)).metrics["skipped_updates"] == 1
    assert equal(weights_of(backend), before)
    assert asyncio.run(backend.score([])).logprobs == []


def test_checkpoint_resumes_bitwise(make_backend: MakeBackend, tmp_path: Path):
    loss = PolicyLoss("vanilla")
    first = make_backend()
    for seed in range(3):
        asyncio.run(first.train_step(make_samples(4, seed), loss))
    asyncio.run(first.save(tmp_path / "step-3"))
    after = [asyncio.run(first.train_step(make_samples(4, seed), loss)) for seed in (3, 4)]

    second = make_backend()
    asyncio.run(second.load(tmp_path / "step-3"))
    assert [asyncio.run(second.train_step(make_samples(4, seed), loss)) for seed in (3, 4)] == after
    assert equal(weights_of(first), weights_of(second))


def test_a_checkpoint_is_a_hugging_face_folder(make_backend: MakeBackend, tmp_path: Path):
    backend = make_backend()
    asyncio.run(backend.train_step(make_samples(4), SFT))
    asyncio.run(backend.save(tmp_path / "step-1"))
    assert all(map(load_file, (tmp_path / "step-1").glob("*.safetensors")))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1").state_dict()
    for name, value in backend.weights():
        torch.testing.assert_close(loaded[name], value.cpu(), rtol=0, atol=0)
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-1"]


def background_of(backend: Backend) -> Callable[[Callable[[], object]], object]:
    """The function that runs work before the files that the backend writes in the background."""
    ranks = getattr(backend, "_ranks", None)
    return ranks.in_background if ranks else backend._background.submit


def test_files_written_while_training_goes_on_are_those_of_save(make_backend: MakeBackend, tmp_path: Path):
    backend, may_write = make_backend(), threading.Event()
    asyncio.run(backend.train_step(make_samples(4), SFT))
    asyncio.run(backend.save(tmp_path / "at_once"))
    background_of(backend)(may_write.wait)
    files = asyncio.run(backend.begin_save(tmp_path / "later"))
    asyncio.run(backend.train_step(make_samples(4, 1), SFT))
    assert not files.done()
    may_write.set()
    files.result(60)
    names = [path.relative_to(tmp_path / "at_once") for path in (tmp_path / "at_once").rglob("*") if path.is_file()]
    assert names
    for name in names:
        written, expected = (tmp_path / folder / name for folder in ("later", "at_once"))
        assert written.stat().st_mode == expected.stat().st_mode
        if name.name != ".metadata":  # names the folder
            assert content(written) == content(expected), name


def content(file: Path) -> bytes:
    """The bytes of a file; of a file of torch without the devices that it names."""
    if file.suffix != ".pt":
        return file.read_bytes()
    found = io.BytesIO()
    torch.save(torch.load(file, map_location="cpu"), found)
    return found.getvalue()


def test_work_is_done_off_the_event_loop_one_call_at_a_time(make_backend: MakeBackend):
    running: list[str] = []

    class Watched(PolicyLoss):
        def __call__(self, batch):
            running.append(threading.current_thread().name)
            assert len(running) == 1
            result = super().__call__(batch)
            running.pop()
            assert threading.current_thread() is not threading.main_thread()
            return result

    async def train_twice(backend: Backend) -> None:
        await asyncio.gather(*(backend.train_step(make_samples(3), Watched("sft")) for _ in range(2)))

    asyncio.run(train_twice(make_backend()))


def test_frozen_policy_can_be_scored_saved_and_loaded(make_backend: MakeBackend, tmp_path: Path):
    reference, policy = make_backend(trainable=False), make_backend()
    assert_equal_scores(reference, policy)
    asyncio.run(policy.train_step(make_samples(3), SFT))
    asyncio.run(policy.save(tmp_path / "a"))
    asyncio.run(reference.load(tmp_path / "a"))
    trained, loaded = weights_of(policy), weights_of(reference)
    assert equal({name: loaded[name] for name in trained}, trained)
    assert_equal_scores(reference, policy)
    with pytest.raises(RuntimeError, match="trainable=False"):
        asyncio.run(reference.train_step(make_samples(3), SFT))


def assert_equal_scores(one: Backend, other: Backend) -> None:
    """Equal up to rounding: where the weights lie in memory decides how a processor sums them."""
    found, expected = (asyncio.run(each.score(make_samples(3))) for each in (one, other))
    for own, theirs in zip([*found.logprobs, *found.entropy], [*expected.logprobs, *expected.entropy], strict=True):
        assert own == pytest.approx(theirs, abs=1e-6)


def test_a_critic_starts_at_zero_and_learns_the_returns(make_backend: MakeBackend):
    critic, samples = make_backend(value_head=True), with_returns(make_samples(6))
    before = asyncio.run(critic.score(samples))
    assert before.logprobs == before.entropy == []
    assert before.values == [[0.0] * len(sample.token_ids) for sample in samples]
    losses = [asyncio.run(critic.train_step(samples, VALUES)).metrics["loss"] for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]
    for sample, row in zip(samples, asyncio.run(critic.score(samples)).values, strict=True):
        assert [value != 0 for value in row] == [bool(trained) for trained in sample.loss_mask]


def test_a_critic_resumes_bitwise_from_a_hugging_face_folder(make_backend: MakeBackend, tmp_path: Path):
    first, second = (make_backend(value_head=True) for _ in range(2))
    for seed in range(3):
        asyncio.run(first.train_step(with_returns(make_samples(4, seed)), VALUES))
    asyncio.run(first.save(tmp_path / "step-3"))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "step-3").state_dict()
    for name, value in first.weights():
        torch.testing.assert_close(loaded[name], value.cpu(), rtol=0, atol=0)
    asyncio.run(second.load(tmp_path / "step-3"))
    steps = [asyncio.run(each.train_step(with_returns(make_samples(4, 3)), VALUES)) for each in (first, second)]
    assert steps[0] == steps[1]
    assert equal(weights_of(first), weights_of(second))


def test_close_can_be_called_twice(make_backend: MakeBackend):
    backend = make_backend()
    asyncio.run(backend.close())
    asyncio.run(backend.close())
