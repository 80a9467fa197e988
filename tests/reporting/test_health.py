"""Each warning fires once on its bad curve, and none fires on good curves."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.reporting.health.history import History
from agentrl.reporting.health.monitor import RECOVERED_AFTER, Health
from agentrl.reporting.health.rules import RULES

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded_run.jsonl").read_text().splitlines()]
HEALTHY = {
    "reward/mean": 0.4,
    "reward/std": 0.3,
    "success": 0.4,
    "groups/zero_variance": 0.25,
    "response_length/mean": 100.0,
    "tool_calls/mean": 1.0,
    "tool/search/calls": 20.0,
    "tool/search/ok": 18.0,
    "tool/search/tool_error": 2.0,
    "stop/finished": 1.0,
    "rollouts/infra_failed": 0.0,
    "reward/guard/repetition": 0.02,
    "actor/entropy": 0.5,
    "actor/ppo_kl": 0.001,
    "actor/pg_clipfrac": 0.05,
    "actor/loss": -0.1,
    "actor/grad_norm": 0.5,
    "actor/num_tokens": 1000.0,
    "actor/skipped_updates": 0.0,
}
FAILED = {"reward/mean": 0.0, "reward/std": 0.0, "success": 0.0, "groups/zero_variance": 1.0}
SOLVED = {"reward/mean": 1.0, "reward/std": 0.0, "success": 1.0, "groups/zero_variance": 1.0}
LATER = {"engine/later_prompt_tokens": 2000.0}
SEARCHES = {"tool/search/calls": 10.0, "tool/search/ok": 4.0}


def firing(steps, tools=("search",), compares=True):
    """Names of the rules that fire after `steps`."""
    history = History(tools, compares)
    for step in steps:
        history.add(step)
    return {name for name, rule in RULES.items() if rule(history)}


def warnings(steps, tools=("search",), compares=True):
    health = Health(tools, compares)
    return [(number, text) for number, step in enumerate(steps, start=1) for text in health.check(step)]


@pytest.mark.parametrize(
    ("rule", "change", "num_steps", "said"),
    [
        ("skipped_updates", {"actor/skipped_updates": 0.5}, 1, "actor.optim.lr"),
        ("skipped_updates", {"actor/grad_norm": math.nan}, 1, "actor/grad_norm not finite"),
        ("skipped_updates", {"actor/skipped_updates": 1.0, "actor/num_tokens": 0.0}, 1, "no token"),
        ("kl", {"actor/ppo_kl": 0.11}, 1, "0.11"),
        ("clipped", {"actor/pg_clipfrac": 0.31}, 1, "31%"),
        ("all_zero", FAILED, 5, "too hard"),
        ("all_one", SOLVED, 5, "stop_when"),
        ("no_contrast", {"groups/zero_variance": 1.0}, 5, "rollout.n"),
        ("length_limit", {"stop/max_response_tokens": 0.9, "stop/max_assistant_turns": 0.1}, 3, "max_response_length"),
        ("unused_tools", {"tool_calls/mean": 0.0, "tool/search/calls": 0.0, "tool/search/ok": 0.0}, 10, "search"),
        ("tool_failures", SEARCHES | {"tool/search/timeout": 3.0}, 5, "time out"),
        ("tool_failures", SEARCHES | {"tool/search/tool_error": 6.0}, 5, "raise a tool error"),
        ("tool_failures", SEARCHES | {"tool/search/format_error": 6.0}, 5, "multi_turn.format"),
        ("dead_tools", SEARCHES | {"tool/search/ok": 0.0, "tool/search/tool_error": 10.0}, 1, "search (tool_error 10)"),
        ("failed_rollouts", {"rollouts/failed": 0.11}, 1, "11% of the rollouts fail with an error"),
        ("infra_failures", {"rollouts/infra_failed": 0.3}, 5, "24% of the rollouts"),
        ("left_out", {"left_out/calls_shift": 0.3, "rollouts/num_dropped": 3.0}, 5, "calls would be 24% higher"),
        ("entropy", {"actor/entropy": 0.01}, 20, "entropy fell to 2.0%"),
        ("critic", {"critic/vf_explained_var": -0.01}, 10, "trainer.critic_warmup"),
        ("mismatch", {"mismatch/k3": 0.001, "mismatch/current/k3": 0.02}, 5, "differ by 0.02 nats per token"),
        ("probe", {"publish/probe_mean_diff": 0.06}, 1, "after publishing, engine and backend differ by 0.06"),
        ("requeued", {"staleness/requeued_share": 0.2}, 5, "raise trainer.max_staleness"),
        ("replay", {"actor/replayed_share": 0.0}, 1, "keep_routed_experts"),
        ("restarts", {"engine/num_restarts": 2.0}, 1, "2 SGLang server(s) crashed or hung"),
        ("cache", LATER | {"engine/later_cached_share": 0.4}, 5, "only 40% of the tokens of earlier turns"),
        ("guards", {"reward/guard/repetition": 0.3}, 5, "(repetition 2% to 13%)"),
        ("length", {"response_length/mean": 20.0}, 20, "0.2 times"),
        ("length", {"response_length/mean": 400.0}, 20, "4 times"),
    ],
)
def test_each_health_rule_fires_only_on_its_own_curve(rule, change, num_steps, said):
    good, bad = [HEALTHY] * 10, [HEALTHY | change] * num_steps
    assert firing(good + bad) == {rule}
    ((step, text),) = warnings(good + bad)
    assert said in text
    assert "\n" not in text
    assert 10 < step <= 10 + num_steps


@pytest.mark.parametrize(
    ("change", "num_steps"),
    [
        (FAILED, 4),
        (SOLVED, 4),
        ({"groups/zero_variance": 1.0}, 4),
        ({"stop/max_response_tokens": 1.0}, 2),
        ({"stop/max_response_tokens": 0.9}, 10),
        ({"actor/ppo_kl": 0.1}, 10),
        ({"actor/pg_clipfrac": 0.3}, 10),
        ({"tool/search/timeout": 2.0}, 10),
        ({"rollouts/failed": 0.1}, 10),
        ({"left_out/calls_shift": 0.3, "rollouts/num_dropped": 1.9}, 10),
        ({"left_out/calls_shift": 0.05, "rollouts/num_dropped": 30.0}, 10),
        ({"critic/vf_explained_var": -0.5}, 9),
        ({"critic/vf_explained_var": 0.0}, 20),
        ({"mismatch/current/k3": 0.02}, 4),
        ({"mismatch/k3": 0.02}, 10),  # only tokens of older weights
        ({"mismatch/k3": 0.02, "mismatch/current/k3": 0.001}, 10),  # the difference is due to staleness
        ({"publish/probe_mean_diff": 0.04}, 10),
        ({"staleness/requeued_share": 0.09}, 10),
        ({"actor/replayed_share": 0.95}, 10),
        ({"engine/num_restarts": 0.0}, 10),
        ({"engine/later_cached_share": 0.4, "engine/later_prompt_tokens": 1000.0}, 5),
        (LATER | {"engine/later_cached_share": 0.95}, 10),
        ({"reward/guard/repetition": 0.12}, 20),
        ({"reward/guard/own": 0.5}, 5),  # this metric is missing in the first steps
        ({"response_length/mean": 31.0}, 20),
        ({"response_length/mean": 299.0}, 20),
        ({"actor/entropy": 0.051}, 20),
    ],
)
def test_short_deviations_cause_no_warning(change, num_steps):
    assert warnings([HEALTHY] * 10 + [HEALTHY | change] * num_steps) == []


def test_groups_requeued_by_over_sampling_cause_no_warning():
    steps = [HEALTHY | {"staleness/requeued_share": 0.3}] * 5
    planned = Health(("search",), over_sampling=0.25)
    assert [text for step in steps for text in planned.check(step)] == []
    assert any("requeued for staleness" in text for _, text in warnings(steps))


def test_a_recorded_good_run_is_silent():
    assert RECORDED[0]["success"] < 0.2
    assert RECORDED[-1]["success"] > 0.9
    assert RECORDED[-1]["actor/entropy"] < 0.2 * RECORDED[0]["actor/entropy"]
    assert warnings(RECORDED, tools=("calculator",)) == []


@pytest.mark.parametrize(("top", "collapsed"), [(0.95, False), (0.6, True)])
def test_low_entropy_is_a_warning_only_if_the_reward_stagnates(top, collapsed):
    """Success is 0.2 + (top - 0.2)(1 - exp(-step / 10)), entropy 0.15 exp(-step / 25)."""
    steps = [
        HEALTHY
        | dict.fromkeys(("success", "reward/mean"), round(0.2 + (top - 0.2) * (1 - math.exp(-step / 10)), 3))
        | {"actor/entropy": 0.15 * math.exp(-step / 25)}
        for step in range(100)
    ]
    said = warnings(steps)
    assert [("entropy fell" in text) for _, text in said] == [True] * collapsed
    assert all(step > 70 for step, _ in said)  # the reward rose until then


@pytest.mark.slow
@given(
    num_steps=st.integers(10, 200),
    last_success=st.floats(0.3, 1.0),
    last_entropy=st.floats(0.0, 1.0),
    last_length=st.floats(1.0, 5000.0),
)
def test_rising_reward_suppresses_entropy_and_length_warnings(num_steps, last_success, last_entropy, last_length):
    def curve(first, last, step):
        return first + (last - first) * step / (num_steps - 1)

    steps = []
    for step in range(num_steps):
        success = curve(0.2, last_success, step)
        steps.append(
            HEALTHY
            | {"success": success, "reward/mean": success, "reward/std": math.sqrt(max(success * (1 - success), 1e-9))}
            | {"actor/entropy": curve(0.15, last_entropy, step)}
            | {"response_length/mean": curve(100.0, last_length, step)}
        )
    assert warnings(steps) == []


def test_warning_is_not_repeated_until_recovery():
    bad, good = HEALTHY | {"actor/ppo_kl": 0.5}, HEALTHY
    assert [step for step, _ in warnings([bad] * 50)] == [1]
    flickering = [bad, *[good] * (RECOVERED_AFTER - 1)] * 10
    assert [step for step, _ in warnings(flickering)] == [1]
    assert [step for step, _ in warnings([bad, *[good] * RECOVERED_AFTER, bad])] == [1, 2 + RECOVERED_AFTER]


@pytest.mark.slow
def test_a_recurring_problem_is_reported_less_and_less_often():
    """One warning if it never recovers, and few warnings for any period."""
    limited = HEALTHY | {"stop/max_response_tokens": 1.0}
    assert [step for step, _ in warnings(([HEALTHY] * 10 + [limited] * 4) * 47)] == [13]
    for period in (1, 5, 49, 50, 51, 60, 110, 300):
        told = [
            step for step, _ in warnings(([HEALTHY | {"actor/ppo_kl": 0.5}] + [HEALTHY] * period) * (700 // period))
        ]
        assert len(told) <= 1 + math.log2(1 + 700 / RECOVERED_AFTER)
        assert told[0] == 1


@pytest.mark.slow
def test_interrupted_run_warns_at_the_same_steps():
    bad = HEALTHY | {"actor/ppo_kl": 0.5}
    steps = [{**(bad if step in (1, 30, 100, 180, 300, 520) else HEALTHY), "step": step} for step in range(1, 601)]
    whole = warnings(steps)
    assert [step for step, _ in whole] == [1, 100, 300, 520]  # after 50, 100 and 200 silent steps
    for cut in (1, 30, 99, 100, 200, 500):
        health = Health(("search",))
        health.remember(steps[:cut])
        rest = [(number, text) for number, step in enumerate(steps[cut:], cut + 1) for text in health.check(step)]
        assert rest == [told for told in whole if told[0] > cut]


def test_two_problems_are_two_warnings():
    texts = [text for _, text in warnings([HEALTHY | {"actor/ppo_kl": 0.5, "actor/pg_clipfrac": 0.5}])]
    assert len(texts) == 2


def test_resumed_run_keeps_warning_state_and_does_not_repeat_warnings():
    short = HEALTHY | {"response_length/mean": 20.0, "actor/ppo_kl": 0.5, "actor/loss": None}
    health = Health(("search",))
    health.remember([{"step": 0.0}, *({**HEALTHY, "step": step} for step in range(1, 11)), {**short, "step": 11}])
    (text,) = [text for _ in range(20) for text in health.check(short | {"actor/loss": 0.0})]
    assert "0.2 times" in text


def test_groups_of_one_cause_no_spread_warning():
    assert firing([HEALTHY | {"groups/zero_variance": 1.0}] * 10, compares=False) == set()


def test_imitation_has_no_rewards_and_becomes_certain():
    steps = [{"actor/loss": 1 / step, "actor/entropy": 6 / step, "actor/num_tokens": 9.0} for step in range(1, 100)]
    assert warnings(steps) == []


@given(st.lists(st.dictionaries(st.sampled_from(sorted(HEALTHY)), st.floats()), max_size=30))
def test_unusual_metrics_raise_no_error(steps):
    assert all("\n" not in text for _, text in warnings(steps))
