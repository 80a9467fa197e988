"""The reasons agree with the numbers, and the closest lack comes first."""

from __future__ import annotations

from agentrl.plan.layout import Layout, Servers
from agentrl.plan.split.candidates import Candidate, Found, Lack, compared
from agentrl.plan.split.simulate import Split


def split(step_s: float, trained_s: float, waited_s: float) -> Split:
    return Split(
        step_s=step_s,
        num_steps=1,
        trainer_idle=waited_s / step_s,
        engine_idle=0.9,
        learn_s=trained_s,
        score_s=0.0,
        staleness={1: 1.0},
        requeued=0.0,
        partial=0.0,
        wasted=0.0,
        tokens_per_step=1.0,
        rollout_s=1.0,
    )


def candidate(train_s: float, rollout_s: float, simulated: Split | None = None) -> Candidate:
    servers = Servers(embedded=False, replicas=2, tensor=1, colocate=False)
    bound_s = train_s + rollout_s
    return Candidate(Layout(kind="fsdp", devices=6), servers, train_s, rollout_s, bound_s, 1e6, simulated)


BEST = candidate(4.0, 4.0, split(10.0, 5.0, 4.0))


def why_not(other: Candidate) -> str:
    return Found([BEST, other], {}).why_not(other)


def test_the_phase_that_grew_is_named():
    assert "waiting for rollouts on 2 devices takes 9 s (best: 4 s)" in why_not(candidate(4, 5, split(12.0, 2.0, 9.0)))
    assert "training on 6 devices takes 9 s (best: 5 s)" in why_not(candidate(4, 5, split(12.0, 9.0, 2.0)))
    assert "publishing takes 6 s (best: 1 s)" in why_not(candidate(4, 5, split(14.0, 5.0, 3.0)))
    assert "sampling on 2 devices takes 9 s (best: 4 s)" in why_not(candidate(3, 9))


def test_a_division_that_was_not_simulated_is_an_estimate():
    below = why_not(candidate(4, 5))
    assert "not simulated, estimate 9 s" in below
    assert "because" not in below
    assert "longer" not in below


def test_seconds_are_compared_in_words():
    assert compared(56.0, 100.0, "X") == "44% shorter than X"
    assert compared(150.0, 100.0, "X") == "50% longer than X"
    assert compared(100.1, 100.0, "X") == "as long as X"


def test_divisions_whose_trainer_fits_are_the_closest():
    trainer, servers, wide = Lack(True, 1.1, "a"), Lack(False, 3.0, "b"), Lack(False, 9.0, "c")
    assert sorted([trainer, wide, servers]) == [servers, wide, trainer]
