from __future__ import annotations

import random
import statistics

import pytest
from pydantic import ValidationError

from agentrl.plan.lengths import LengthsConfig, RolloutLengths, Rows, Spread


def test_mean_and_p95_are_those_that_were_stated():
    spread, rng = Spread(mean=300, p95=900), random.Random(0)
    values = sorted(spread.draw(rng) for _ in range(40_000))
    assert statistics.fmean(values) == pytest.approx(300, rel=0.02)
    assert values[int(0.95 * len(values))] == pytest.approx(900, rel=0.03)


def test_counts_keep_the_mean():
    rng = random.Random(0)
    assert statistics.fmean(Spread(mean=2.3).draw_count(rng) for _ in range(20_000)) == pytest.approx(2.3, rel=0.01)


def test_values_above_most_become_most():
    rng = random.Random(0)
    assert max(Spread(mean=300, p95=900, most=500).draw(rng) for _ in range(1000)) == 500


@pytest.mark.parametrize(
    "values", [{"mean": 0}, {"mean": 10, "p95": 5}, {"mean": 10, "p95": 40}, {"mean": 1, "p50": 1}]
)
def test_a_distribution_that_does_not_exist_is_refused(values):
    with pytest.raises(ValidationError):
        Spread(**values)


def test_contexts_add_up_and_only_new_tokens_are_computed():
    lengths = LengthsConfig(turns=Spread(mean=4), tool_tokens=Spread(mean=100, p95=200), tool_s=Spread(mean=2))
    for rollout in lengths.group(7, 8):
        before = 0
        for turn in rollout.turns:
            assert turn.new == turn.context - before
            before = turn.context + turn.sampled
        assert rollout.trajectories == (before,)
        assert [turn.wait_s for turn in rollout.turns] == [2, 2, 2, 0]


def test_a_group_is_the_same_each_time_and_has_one_prompt():
    lengths = LengthsConfig(prompt_tokens=Spread(mean=500, p95=1000))
    assert lengths.group(3, 4) == lengths.group(3, 4) != lengths.group(4, 4)
    assert len({rollout.prompt for rollout in lengths.group(3, 4)}) == 1


def test_no_rollout_is_longer_than_max_tokens():
    lengths = LengthsConfig(turns=Spread(mean=6, p95=12), max_tokens=2000)
    rollouts = [rollout for number in range(50) for rollout in lengths.group(number, 4)]
    assert max(rollout.num_tokens for rollout in rollouts) == 2000
    assert all(turn.sampled >= 1 for rollout in rollouts for turn in rollout.turns)


def test_samples_leave_out_the_prompt_that_another_rollout_has():
    lengths = LengthsConfig(prompt_tokens=Spread(mean=500))
    first, second = lengths.group(0, 2)
    (whole,), (rest,) = (list(each.samples("0", "u", share=True)) for each in (first, second))
    assert (whole.token_ids[0], rest.token_ids[0], rest.token_ids[-1]) == (0, 500, second.num_tokens - 1)
    (alone,) = second.samples("0", "u", share=False)
    assert len(alone.token_ids) == second.num_tokens


def test_equal_rollouts_still_compute_a_token_and_empty_ones_have_no_sample():
    rollout = RolloutLengths((), (7, 0), 7, shared=(7, 0))
    assert [list(each.token_ids) for each in rollout.samples("0", "u", share=True)] == [[6]]


def test_rows_have_no_turns():
    (row,) = Rows(LengthsConfig()).group(0, 1)
    assert (row.turns, row.num_tokens) == ((), LengthsConfig().group(0, 1)[0].num_tokens)
