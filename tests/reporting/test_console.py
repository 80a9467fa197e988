"""Terminal output: the live panel, plain lines, samples and the comparison."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console
from rich.text import Text

from agentrl.reporting.console import ConsoleTracker, print_comparison, print_samples, sparkline
from agentrl.reporting.formatting import compare, duration, first_and_last, number, tool_outcomes
from agentrl.reporting.report_facts import how_sampled
from agentrl.reporting.samples import sample_view
from agentrl.security.visible_text import visible
from agentrl.types.rollout import Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

STEP = {
    "reward/mean": 0.5,
    "success": 0.25,
    "response_length/mean": 36.0,
    "num_turns/mean": 2.5,
    "tool/calculator/calls": 10.0,
    "tool/calculator/ok": 8.0,
    "tool/calculator/timeout": 1.0,
    "tool/search/calls": 10.0,
    "tool/search/ok": 8.0,
    "tool/search/format_error": 3.0,
    "tool/search/duration_s": 99.0,
    "perf/tokens_per_s": 12345.0,
    "timing_s/step": 2.0,
    "actor/loss": math.nan,
}


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def console(terminal=False, width=80, environment=None):
    return Console(file=Screen(terminal), width=width, height=40, _environ=environment or {"TERM": "xterm-256color"})


def clock(*times_s):
    times = iter(times_s)
    return lambda: next(times)


def test_one_plain_line_per_step_without_a_terminal():
    log = console(width=40)
    tracker = ConsoleTracker(100, "calculator", clock=clock(0.0, 2.0, 5.0), console=log)
    tracker.log(1, STEP)
    tracker.log(2, {"val/success": 0.75})
    tracker.close()
    assert log.file.getvalue().splitlines() == [
        "calculator: 100 steps",
        "step   1/100 | reward 0.5 | success 25.0% | tools 20 calls, 80.0% ok, format_error 3, timeout 1 | "
        "response 36 tokens, 2.5 turns | speed 2 s/step, 12,345 tokens/s | 3:18 left",
        "step   2/100 | val success 75.0% | 4:54 left",
    ]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"do_sample": False, "temperature": 1.0}, "(greedy)"),
        ({"do_sample": True, "temperature": 0.7}, "(sampled at temperature 0.7)"),
    ],
)
def test_validation_reports_its_sampling_settings(live, settings, how):
    sampling = how_sampled({"rollout": {"val_kwargs": settings}})
    screen = console(terminal=live)
    tracker = ConsoleTracker(9, "run", clock=lambda: 0.0, console=screen, val_sampling=sampling)
    for step in range(1, 10):
        tracker.log(step, {"success": 0.5, "val/success": step / 10})
    tracker.close()
    lines = [Text.from_ansi(line).plain for line in screen.file.getvalue().splitlines()]
    said = [line for line in lines if "val success" in line]
    assert said
    assert all(how in line for line in said)
    assert not any(how in line.partition("val success")[0] for line in lines)  # only of validation


def test_failed_rollouts_are_shown_if_any():
    log = console(width=40)
    tracker = ConsoleTracker(2, "run", clock=clock(0.0, 1.0, 2.0), console=log)
    dropped = {"rollouts/num_dropped": 47.0, "rollouts/dropped": 47 / 320, "success_all": 0.725}
    tracker.log(1, {"reward/mean": 0.5, **dropped, **{f"val/{name}": value for name, value in dropped.items()}})
    tracker.log(2, {"reward/mean": 0.5, "rollouts/num_dropped": 0.0, "rollouts/dropped": 0.0})
    assert log.file.getvalue().splitlines()[1:] == [
        "step 1/2 | reward 0.5 | dropped 47 of 320 rollouts; success of all rollouts 72.5%"
        " | val dropped 47 of 320 rollouts; success of all rollouts 72.5%",
        "step 2/2 | reward 0.5",
    ]


def test_console_shows_mismatch_and_staleness():
    log = console(width=40)
    tracker = ConsoleTracker(1, "run", clock=clock(0.0, 1.0), console=log)
    engine = {"engine/cached_share": 0.875, "mismatch/k3": 0.5, "mismatch/current/k3": 0.00012}
    tracker.log(1, {**engine, "staleness/mean": 1.5, "staleness/requeued": 2.0, "timing_s/wait_rollouts": 1e-5})
    assert log.file.getvalue().splitlines()[-1] == (
        "step 1/1 | speed wait 0 | engine 87.5% of the context cached, 1.2e-4 nats from the backend | "
        "staleness 1.5 versions, 2 groups requeued"
    )


def test_the_learning_signal_of_an_algorithm_is_shown_if_present():
    tracker = ConsoleTracker(2, "x", clock=clock(0, 1, 2), console=(screen := console()))
    tracker.log(1, {"actor/accuracy": 0.75, "actor/margin": 0.5, "kept/samples": 0.25})
    tracker.log(2, {"kl/reward_mean": 0.02, "kl/reward_coef": 0.1})
    first, second = screen.file.getvalue().splitlines()[1:]
    assert "preference 75.0% right, margin 0.5 | kept 25.0% of the samples" in first
    assert "kl 0.02 nats to the reference, times 0.1" in second
    assert "kl" not in first


@pytest.mark.parametrize("terminal", [False, True])
def test_val_only_run_has_no_steps(terminal):
    log = console(terminal)
    tracker = ConsoleTracker(0, "run", clock=lambda: 0.0, console=log, live=terminal)
    tracker.log(0, {"val/success": 0.75})
    tracker.close()
    assert "75.0%" in log.file.getvalue()
    assert "0 steps" not in log.file.getvalue()


def test_forced_colour_does_not_turn_a_log_into_a_terminal():
    log = console(environment={"FORCE_COLOR": "1", "TERM": "xterm"})
    tracker = ConsoleTracker(3, "run", clock=clock(0.0, 1.0), console=log)
    tracker.log(1, STEP)
    assert "│" not in log.file.getvalue()


def live_screen(width, environment=None):
    screen = console(terminal=True, width=width, environment=environment)
    times_s = (float(i) for i in range(1000))
    tracker = ConsoleTracker(4, "calculator [bold]", clock=lambda: next(times_s), console=screen)
    tracker.log(1, STEP | {"val/success": 0.5})
    tracker.log(2, STEP | {"reward/mean": 0.75})
    tracker.close()
    return screen.file.getvalue()


def test_the_live_panel_shows_the_step_and_keeps_the_last_validation():
    last = live_screen(80).rpartition("calculator [bold]")[2]
    for text in ("step 2/4", "0.75", "▁█", "val success", "50.0%", "20 calls, 80.0% ok", "left"):
        assert text in last, text


@pytest.mark.parametrize("width", [20, 45, 200])
def test_the_panel_fits_its_terminal(width):
    plain = live_screen(width, {"NO_COLOR": "1", "TERM": "xterm"})
    lines = [re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", line) for line in plain.splitlines() if "│" in line]
    assert lines
    assert {len(line) for line in lines} == {width}


def test_no_color_is_honoured():
    assert "\x1b[34m" in live_screen(80)
    assert "\x1b[34m" not in live_screen(80, {"NO_COLOR": "1", "TERM": "xterm"})


def test_a_dumb_terminal_gets_lines():
    assert "│" not in live_screen(80, {"TERM": "dumb"})


def test_sft_run_logs_a_loss_and_has_no_rollouts():
    log = console()
    tracker = ConsoleTracker(9, "sft", clock=clock(0.0, 1.0), console=log)
    tracker.log(1, {"actor/loss": 1.25, "actor/grad_norm": 0.5, "actor/lr": 1e-5, "timing_s/step": 0.5})
    line = log.file.getvalue().splitlines()[-1]
    assert line == "step 1/9 | loss 1.25 | update grad norm 0.5, lr 1e-5 | speed 0.5 s/step | 0:04 left"


def test_sparkline_shows_relative_heights():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 4, 4, 1, 1], 3) == "▁█▃"
    assert sparkline([1, 1, 1], 9) == "▁▁▁"
    assert sparkline([-1e308, -1e308, 1.5e308, 1.5e308], 2) == "▁█"
    assert sparkline([1], 9) == sparkline([1, 2, 3], 1) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (-0.0, "0"), (0.0012345, "0.00123"), (0.00012345, "1.23e-4"), (-0.5, "-0.5"), (12.345, "12.3")),
        *((100, "100"), (999.96, "1,000"), (0.99996, "1"), (1234, "1,234"), (12345, "12,345"), (-2e9, "-2e9")),
        *((99_999, "99,999"), (1e5, "1e5"), (999_999, "1e6"), (1e300, "1e300"), (5e-324, "4.94e-324")),
        *((math.nan, "nan"), (-math.inf, "-inf")),
    ],
)
def test_numbers_are_formatted_for_the_console(value, text):
    assert number(value) == text


def test_durations_are_formatted_for_the_console():
    assert [duration(seconds) for seconds in (0.4, 59.6, 725, 11045)] == ["0:00", "1:00", "12:05", "3:04:05"]


def rollout():
    model = [Segment(Author.MODEL, ids, [-0.1] * len(ids), (VersionSpan(0, len(ids)),)) for ids in ([3, 4], [6])]
    segments = [Segment(Author.PROMPT, [1, 2]), model[0], Segment(Author.TOOL, [5]), model[1]]
    calls = [ToolCall("calculator", '{"expression": "1+1"}', "2", Outcome.OK, duration_s=0.5)]
    return Rollout([Trajectory(segments)], Stop.FINISHED, {"score": 1.0}, tool_calls=calls)


WORDS = {1: "What is", 2: " 1+1?", 3: "[red]calculator", 4: "(1+1)\x1b[2J", 5: "2\u202e", 6: "The answer is 2"}


def text_of(token_ids):
    return "".join(WORDS[token] for token in token_ids)


def test_samples_distinguish_authors_without_colour():
    screen = console()
    print_samples([rollout()], text_of, screen)
    assert [line.rstrip() for line in screen.file.getvalue().splitlines()] == [
        "authors: prompt  model (trained on)  tool",
        "sample 1: reward 1, finished, 1 tool call: ok " + "─" * 34,
        "prompt What is 1+1?",
        " model [red]calculator(1+1)⟨U+001B⟩[2J",
        "  tool 2⟨U+202E⟩",
        " model The answer is 2",
        "",
    ]


def test_samples_colour_each_author():
    screen = console(terminal=True)
    print_samples([rollout()], text_of, screen)
    text = screen.file.getvalue()
    assert "\x1b[32mThe answer is 2" in text
    assert "\x1b[33m2⟨U+202E⟩" in text


def test_long_segments_lose_their_middle():
    screen = console(width=200)
    print_samples([rollout()], lambda token_ids: "ab" * 500, screen, max_characters=10)
    assert "ababa\n" in screen.file.getvalue().replace(" ", "")
    assert "… 990 characters omitted …" in screen.file.getvalue()


def test_a_sample_view_is_plain_data():
    assert sample_view(Task([], ground_truth="2", data_source="sums", uid="u1"), rollout(), text_of, step=3) == {
        "uid": "u1",
        "data_source": "sums",
        "ground_truth": "2",
        "reward": 1.0,
        "rewards": {"score": 1.0},
        "stop": "finished",
        "error": None,
        "num_turns": 2,
        "tool_calls": [
            {
                "name": "calculator",
                "arguments": '{"expression": "1+1"}',
                "result": "2",
                "outcome": "ok",
                "duration_s": 0.5,
            }
        ],
        "segments": [
            {"author": "prompt", "text": "What is 1+1?", "num_tokens": 2, "trajectory": 0},
            {"author": "model", "text": "[red]calculator(1+1)\x1b[2J", "num_tokens": 2, "trajectory": 0},
            {"author": "tool", "text": "2\u202e", "num_tokens": 1, "trajectory": 0},
            {"author": "model", "text": "The answer is 2", "num_tokens": 1, "trajectory": 0},
        ],
        "step": 3,
    }


def test_visible_leaves_words_and_emoji_alone():
    for text in ("héllo\n\twörld", "数学", "👩\u200d🔬", "می\u200cخواهم"):
        assert visible(text) == text
    assert visible("a\rb\u2066c\ud800") == "a⟨U+000D⟩b⟨U+2066⟩c⟨U+D800⟩"


def test_tool_outcomes_add_up_over_tools():
    assert tool_outcomes(STEP) == {"ok": 16, "format_error": 3, "timeout": 1}


def test_comparison_of_two_validations():
    before = {f"val/{name}": value for name, value in STEP.items()}
    after = {**before, "val/success": 0.95, "val/reward/mean": 0.4}
    rows = {row.label: row[1:] for row in compare(before, after)}
    assert rows["success"] == ("25.0%", "95.0%", "+70.0 pp", True)
    assert rows["reward"] == ("0.5", "0.4", "-0.1", False)
    assert rows["tool calls ok"] == ("80.0%", "80.0%", "no change", None)
    assert rows["turns"] == ("2.5", "2.5", "no change", None)
    assert compare({}, after) == []


def test_change_that_rounds_to_zero_is_not_counted():
    (row,) = compare({"success": 0.90001}, {"success": 0.90004})
    assert (row.change, row.better) == ("no change", None)
    (row,) = compare({"success": 0.80049}, {"success": 0.80051})  # 80.0% and 80.1%, less than 0.05 apart
    assert row.better is None


def test_averages_are_compared_with_averages_and_dropped_rollouts_are_counted():
    first = {"tool/add/calls": 600.0, "tool/add/ok": 300.0, "tool_calls/mean": 1.2, "rollouts/dropped": 0.0}
    last = {"tool/add/calls": 900.0, "tool/add/ok": 810.0, "tool_calls/mean": 1.8, "rollouts/dropped": 0.15}
    rows = {row.label: row[1:] for row in compare(first, last)}
    assert rows["tool calls per rollout"] == ("1.2", "1.8", "+0.6", None)
    assert rows["dropped rollouts"] == ("0.0%", "15.0%", "+15.0 pp", False)
    assert not any("600" in row or "900" in row for row in rows.values())
    assert "dropped rollouts" not in {row.label for row in compare(first, {**last, "rollouts/dropped": 0.0})}


def test_custom_rewards_are_compared_but_guards_are_not():
    rewards = {"reward/mean": 0.5, "reward/std": 0.1, "reward/format": 0.2, "reward/guard/length": 1.0}
    assert [row.label for row in compare(rewards, rewards)] == ["reward", "format"]


def test_comparison_as_a_table():
    screen = console()
    print_comparison({"success": 0.2}, {"success": 0.9}, screen)
    lines = screen.file.getvalue().splitlines()
    (row,) = [line for line in lines if "success" in line]
    assert row.split() == ["success", "20.0%", "90.0%", "+70.0", "pp"]
    assert lines[0].strip() == "held-out, before -> after"


@pytest.mark.parametrize(("first", "said"), [(0, "before training"), (1, "step 1")])
def test_validations_are_named_by_their_steps(first, said):
    rows = [{"step": first, "success": 0.9, "val/success": 0.2}, {"step": 2, "success": 0.7}]
    assert first_and_last(rows) is None  # a single validation has no comparison
    before, after = first_and_last([*rows, {"step": 3, "success": 0.0, "val/success": 0.5}])
    screen = console()
    print_comparison(before, after, screen)
    title, columns, *_ = filter(str.strip, screen.file.getvalue().splitlines())
    assert title.strip() == f"held-out, {said} -> step 3"
    assert re.split(" {2,}", columns.strip()) == [said, "step 3", "change"]
    assert "+30.0 pp" in screen.file.getvalue()


def test_remaining_time_does_not_jump_around_validations():
    """Each step takes 1 s, and every fifth is followed by a validation of 10 s: 3 s per step on average."""
    now, left = [0.0], []
    tracker = ConsoleTracker(40, "run", clock=lambda: now[0], console=Console(file=io.StringIO()), live=False)
    for step in range(1, 31):
        now[0] += 1.0 + 10.0 * (step % 5 == 0)
        tracker.log(step, {"timing_s/step": 1.0})
        left.append(tracker._left_s())
    paces = [left_s / (40 - step) for step, left_s in enumerate(left, 1) if step >= 10]
    assert max(paces) - min(paces) < 0.8
    assert paces[-1] == pytest.approx(3.0, abs=0.3)
