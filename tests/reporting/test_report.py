"""The report: self-contained, escapes all text, and readable during a run."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import chain

import pytest

from agentrl.errors import DataError
from agentrl.reporting.chart_layout import HEIGHT, WIDTH, draw, moving_average
from agentrl.reporting.charts import Chart, Series, charts
from agentrl.reporting.formatting import number, percent
from agentrl.reporting.report import merged, report_from_run, write_report
from agentrl.reporting.report_facts import facts_of, sampling_of

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7*7 }}\u202egnp.\x00\ud800"


def history(num_steps):
    for step in range(num_steps):
        yield {
            "step": step,
            "success": step / num_steps,
            "reward/mean": step / num_steps,
            "tool/calculator/calls": 4.0,
            "tool/calculator/ok": 3.0,
            "tool/calculator/timeout": 1.0,
            "actor/grad_norm": None,
            "custom/metric": float(step),
        } | ({"val/success": step / num_steps, "timing_s/step": 1.0} if step % 5 == 0 else {})


def sample(text="The answer is 2", **changes):
    return {
        "uid": "u1",
        "data_source": "sums",
        "ground_truth": "2",
        "reward": 1.0,
        "rewards": {"score": 1.0},
        "stop": "finished",
        "error": None,
        "num_turns": 1,
        "tool_calls": [
            {"name": "calculator", "arguments": "{}", "result": "2", "outcome": "tool_error", "duration_s": 0.0}
        ],
        "segments": [
            {"author": "prompt", "text": "1+1?" * 200, "num_tokens": 4, "trajectory": 0},
            {"author": "model", "text": text, "num_tokens": 4, "trajectory": 0},
        ],
    } | changes


class Page(HTMLParser):
    """The page as a browser parses it: elements, text by innermost class, attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":  # the only element here that HTML does not close
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag  # every element is closed, in order

    def handle_data(self, data):
        self.text += "" if self.open[-1:] == ["style"] else data


def page_of(tmp_path, **parts):
    path = tmp_path / "report.html"
    write_report(path, **({"title": "calculator", "config": {}, "history": list(history(20))} | parts))
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    return text, page


def test_the_page_loads_and_runs_nothing(tmp_path):
    text, page = page_of(tmp_path, samples=[sample()])
    assert "default-src 'none'" in text
    assert {"script", "link", "img", "iframe", "a", "object"} & set(page.tags) == set()
    assert {name for name, _ in page.attributes} & {"src", "href", "onclick", "onerror", "style"} == set()
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_hostile_text_stays_text(tmp_path):
    parts = {
        "title": HOSTILE,
        "config": {"model": {"path": HOSTILE}, HOSTILE: HOSTILE},
        "history": [{"step": step, f"custom/{HOSTILE}": 1.0} for step in range(2)],
        "samples": [
            sample(
                f"<|im_start|>{HOSTILE}<|im_end|>",
                uid=HOSTILE,
                data_source=HOSTILE,
                ground_truth=HOSTILE,
                stop=HOSTILE,
                error=HOSTILE,
                tool_calls=[{"name": HOSTILE, "outcome": HOSTILE}],
            )
        ],
    }
    text, page = page_of(tmp_path, **parts)
    assert {"script", "img"} & set(page.tags) == set()
    assert {name for name, _ in page.attributes} & {"onerror", "src"} == set()
    shown = HOSTILE.replace("\u202e", "⟨U+202E⟩").replace("\x00", "⟨U+0000⟩").replace("\ud800", "⟨U+D800⟩")
    assert page.text.count(shown) >= 6  # title twice, headings, sample text, ground truth, error
    for hidden in "\u202e\x00":
        assert hidden not in text


def test_samples_show_the_author_of_each_part(tmp_path):
    text, page = page_of(tmp_path, samples=[sample(step=0, reward=0.0), sample(step=20), sample(uid="u2")])
    assert text.count('class="task"') == 2  # attempts at one task are shown side by side
    assert text.count('class="segment model"') == 3
    assert text.count('class="segment prompt"') == 2  # once per task
    for words in (
        "step 20",
        "reward 0",
        "ground truth 2",
        "calculator: tool error",
        "4 tokens, trained on",
        "800 characters",
    ):
        assert words in page.text, words


def test_before_and_after_are_the_first_and_last_validation(tmp_path):
    _, page = page_of(tmp_path)
    assert "from 0.0% +75.0 pp" in page.text
    assert "Held-out, before training → step 15" in page.text
    _, page = page_of(tmp_path, history=list(history(20))[5:])  # trainer.val_before_train=false
    assert "from 25.0% +50.0 pp" in page.text
    assert "Held-out, step 5 → step 15" in page.text
    _, page = page_of(tmp_path, history=list(history(3)))
    assert "Held-out" not in page.text  # a single validation has no comparison


def test_every_metric_has_a_chart(tmp_path):
    _, page = page_of(tmp_path)
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert (
        "Success: training from 0.0% at step 0 to 95.0% at step 19; held-out from 0.0% at step 0 to 75.0% at step 15"
        in labels
    )
    assert "Tool calls by outcome, timeout 25.0%" in page.text  # a constant metric is shown as one line of text
    assert any(label.startswith("custom/metric:") for label in labels)
    assert not any("Gradient" in label for label in labels)  # never a number


def test_run_without_a_completed_step_is_shown(tmp_path):
    _, page = page_of(tmp_path, history=[])
    assert "No step has been logged yet." in page.text


def test_long_run_has_a_small_report(tmp_path):
    text, _ = page_of(tmp_path, history=list(history(5000)))
    assert len(text) < 1_000_000


def test_report_uses_the_last_version_of_a_step_and_skips_gaps():
    rows = [{"step": 2, "a": 1}, {"step": 1, "a": 5, "b": None}, {"a": 9}, {"step": 2, "a": 2, "c": math.nan}]
    assert merged(rows) == [{"step": 1.0, "a": 5.0}, {"step": 2.0, "a": 2.0}]


def test_report_of_an_unfinished_run(tmp_path):
    lines = "".join(json.dumps(row) + "\n" for row in history(7))
    (tmp_path / "metrics.jsonl").write_text(lines + '{"step": 7, "rew')
    assert report_from_run(tmp_path) == tmp_path / "report.html"  # the folder has neither config nor samples yet
    (tmp_path / "config.yaml").write_text("trainer: {experiment_name: sums, total_training_steps: 60, seed: 0}")
    (tmp_path / "samples.json").write_text(json.dumps([sample()])[:-9])
    report_from_run(tmp_path)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    for words in ("sums", "steps6 of 60", "time in steps0:02", "seed0", "experiment_name: sums"):
        assert words in page.text, words
    assert "Samples" not in page.text
    (tmp_path / "samples.json").write_text(json.dumps([sample()]))
    assert "The answer is 2" in report_from_run(tmp_path).read_text(encoding="utf-8")


def test_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"not a run folder: it has no metrics\.jsonl"):
        report_from_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.yaml").write_text("trainer: [")
    with pytest.raises(DataError, match=r"config\.yaml: not readable YAML"):
        report_from_run(tmp_path)


@pytest.mark.parametrize(
    "values",
    [[0.0], [5.0], [-3.0, -3.0], [1e-9, 2e-9], [1e12, -1e12], [0.2, 0.97], [float(i % 7) for i in range(1000)]],
)
@pytest.mark.parametrize("write", [percent, lambda value: f"{value:g}"])
def test_drawings_stay_inside_their_box(values, write):
    drawing = draw(Chart("x", [Series("a", list(enumerate(values, start=1)))], write))
    (line,) = drawing.lines
    for path in filter(None, (line.path, line.faint)):
        for x, y in (map(float, place.split()) for place in path.removeprefix("M").split("L")):
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
    assert 2 <= len(drawing.y_ticks) <= 8
    assert len({label for _, label in drawing.y_ticks}) == len(drawing.y_ticks)
    assert sum(column.width for column in drawing.columns) <= WIDTH


def test_chart_axes_and_points_have_correct_positions():
    drawing = draw(Chart("Success", [Series("training", [(0, 0.0), (10, 0.5), (20, 1.0)])], percent))
    assert drawing.y_ticks[0][1] == "0"
    assert drawing.y_ticks[-1][1] == "100%"
    (bottom, top) = drawing.y_ticks[0][0], drawing.y_ticks[-1][0]
    (first, middle, last) = drawing.lines[0].dots
    assert (first[1], middle[1], last[1]) == (bottom, (bottom + top) / 2, top)
    assert drawing.columns[1].readings == [(0, middle[1], "training 50.0%")]
    assert [column.step for column in drawing.columns] == ["step 0", "step 10", "step 20"]
    assert [label for _, label in drawing.x_ticks] == ["0", "5", "10", "15", "20"]


@pytest.mark.parametrize(
    ("values", "write", "labels"),
    [
        ([6.10, 6.12], number, ["6.100", "6.105", "6.110", "6.115", "6.120"]),
        ([0.0, 0.0015], number, ["0", "0.0005", "0.0010", "0.0015"]),
        ([0.0, 1.7e5], number, ["0", "5e4", "1e5", "1.5e5", "2e5"]),
        ([1e-6, 5e-6], number, ["0", "2e-6", "4e-6", "6e-6"]),
        ([0.1, 0.1005], percent, ["10.00%", "10.02%", "10.04%", "10.06%"]),
        ([0.0, 1e300], number, ["0", "2e299", "4e299", "6e299", "8e299", "1e300"]),
        ([1e300, 1e300 * (1 + 1e-15)], number, ["4e299", "6e299", "8e299", "1e300", "1.2e300", "1.4e300", "1.6e300"]),
    ],
)
def test_tick_labels_are_distinct(values, write, labels):
    drawing = draw(Chart("x", [Series("a", list(enumerate(values)))], write))
    assert [label for _, label in drawing.y_ticks] == labels
    assert all(len(label) * 6.5 <= drawing.left for label in labels)  # every label fits into its card


def test_values_have_as_many_digits_as_axis_ticks():
    drawing = draw(Chart("Entropy", [Series("policy", [(1, 6.1012), (2, 6.1189)])]))
    assert [column.readings[0][2] for column in drawing.columns] == ["policy 6.1012", "policy 6.1189"]
    assert drawing.lines[0].last == "6.1189"


def test_numbers_of_any_size_leave_a_page_of_ordinary_size(tmp_path):
    values = [1e300, -1e300, 1.7e308, -1.7e308, 1e-300, 0.0, 3.0]
    text, page = page_of(tmp_path, history=[{"step": i, "reward/mean": v, "x": v} for i, v in enumerate(values)])
    assert "training from 1e300 at step 0 to 3 at step 6" in text
    assert not re.search(r"\d{20}", text)
    assert {"inf", "nan"} & set(re.findall(r"[a-z]+", page.text)) == set()


def test_moving_average_is_shorter_at_both_ends():
    assert moving_average([0, 3, 6, 0], reach=1) == [1.5, 3, 3, 3]
    assert moving_average([2, 4], reach=9) == [3, 3]


def test_imitation_report_has_only_existing_charts():
    main, rest = charts([{"step": 1, "actor/loss": 2.0, "timing_s/step": 1.0}, {"step": 2, "actor/loss": 1.0}])
    assert [chart.title for chart in main] == ["Loss", "Time per step"]
    assert rest == []


def test_charts_of_an_engine_and_of_staleness():
    shown = (
        "engine/cached_share",
        "mismatch/current/k3",
        "publish/probe_mean_diff",
        "staleness/mean",
        "staleness/engine_idle",
    )
    main, rest = charts([{"step": 1, "engine/num_retried": 0.0, **dict.fromkeys(shown, 0.5)}])
    titles = [
        "Cached context",
        "Mismatch of engine and trainer",
        "Staleness",
        "Asynchronous rollouts",
    ]
    assert [chart.title for chart in main] == titles
    assert [chart.title for chart in rest] == ["engine/num_retried"]


def test_charts_of_preferences_of_a_kl_in_the_reward_and_of_dynamic_sampling():
    preference = ["actor/accuracy", "actor/margin", "actor/chosen_rewards", "actor/rejected_rewards", "kept/samples"]
    others = ["kl/reward_mean", "kl/reward_coef", "sampling/drawn", "sampling/filtered"]
    main, rest = charts([{"step": 1, **dict.fromkeys([*preference, *others], 0.5)}])
    assert [(chart.title, [series.label for series in chart.series]) for chart in main] == [
        ("KL divergence", ["to the reference, in the reward"]),
        ("Coefficient of the KL in the reward", ["coefficient"]),
        ("Pairs ranked correctly", ["training"]),
        ("Preference", ["margin", "chosen", "rejected"]),
        ("Samples in the loss", ["kept"]),
        ("Groups of a step", ["sampled", "filtered: equal rewards"]),
    ]
    assert rest == []


def test_the_curves_are_well_formed_svg(tmp_path):
    text, _ = page_of(tmp_path)
    drawings = [piece.partition("</svg>")[0] for piece in text.split("<svg")[1:]]
    assert drawings
    for drawing in drawings:
        ElementTree.fromstring(f"<svg{drawing}</svg>")


def test_the_best_step_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 4, "val/success": 0.75}\n')
    (tmp_path / "checkpoints/step-4").mkdir(parents=True)
    best = {"metric": "val/success", "value": 0.75, "step": 4}
    (tmp_path / "checkpoints/step-4/run_state.json").write_text(json.dumps({"step": 4, "position": 8, "best": best}))
    assert "val/success 0.75 at step 4" not in report_from_run(tmp_path).read_text()
    (tmp_path / "checkpoints/best").symlink_to("step-4")
    assert "val/success 0.75 at step 4" in report_from_run(tmp_path).read_text()


def values_of(metric: str, values) -> list[dict[str, float]]:
    return [{"step": step, metric: value} for step, value in enumerate(values)]


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("actor/ppo_kl", [1e-8, -3e-8, 2e-8]),  # rounding errors of log-probabilities
        ("actor/loss", [1e-9, -2e-8, 4e-8]),
        ("publish/probe_mean_diff", [2e-7, 1e-7, 3e-7]),
        ("actor/pg_clipfrac", [0.0, 0.0, 0.0]),
        ("rollouts/dropped", [0.0, 0.0]),
        ("actor/lr", [1e-6, 1e-6]),
    ],
)
def test_a_metric_constant_up_to_rounding_is_text_and_no_curve(tmp_path, metric, values):
    (chart,) = chain.from_iterable(charts(values_of(metric, values)))
    assert chart.is_constant
    text, page = page_of(tmp_path, history=values_of(metric, values))
    assert "<svg" not in text
    assert "Constant:" in page.text


@pytest.mark.parametrize(
    ("metric", "values"), [("actor/ppo_kl", [1e-5, 3e-5]), ("actor/lr", [1e-7, 2e-7]), ("success", [0.0, 0.0])]
)
def test_small_and_constant_success_rates_are_curves(metric, values):
    (chart,) = chain.from_iterable(charts(values_of(metric, values)))
    assert not chart.is_constant


def test_constant_series_has_a_sensible_axis_range():
    def ends(values, write=number):
        ticks = draw(Chart("x", [Series("a", list(enumerate(values)))], write)).y_ticks
        return ticks[0][1], ticks[-1][1]

    assert ends([0.0, 0.0], percent) == ("0", "100%")
    assert ends([0.0, 0.0]) == ("0", "1.0")
    assert ends([4.0, 4.0]) == ("2", "6")


def test_axes_have_names(tmp_path):
    (chart,), _ = charts(values_of("success", [0.1, 0.9]))
    drawing = draw(chart)
    assert (drawing.x_name, drawing.y_name) == ("step", "share of rollouts")
    _, page = page_of(tmp_path, history=values_of("success", [0.1, 0.9]))
    assert "share of rollouts" in page.text
    for x, label in drawing.x_ticks + drawing.y_ticks:
        assert 0 <= x <= WIDTH, label


def test_user_rewards_and_metrics_are_listed_first(tmp_path):
    rows = [
        {
            "step": step,
            "reward/mean": step / 4,
            "reward/format": step / 2,
            "val/reward/format": step / 3,
            "reward/guard/length": 0.0,
            "shelves/visited": step,
            "engine/num_retried": step,
        }
        for step in (1, 2)
    ]
    main, rest = charts(rows)
    assert [chart.title for chart in main] == ["Reward", "Reward: format", "shelves/visited"]
    assert [series.label for series in main[1].series] == ["training", "held-out"]
    assert [chart.title for chart in rest] == ["engine/num_retried"]


def test_facts_count_dropped_rollouts_and_name_how_validation_samples():
    rows = [
        {"step": 1.0, "rollouts/dropped": 0.1},
        {"step": 2.0, "rollouts/dropped": 0.3, "val/rollouts/dropped": 0.15},
    ]
    told = dict(facts_of(rows, {}, None, None))["dropped rollouts"]
    rows[-1] |= {"val/rollouts/num_dropped": 48.0, "val/success_all": 0.725}
    counted = dict(facts_of(rows, {}, None, None))["dropped rollouts"]
    assert counted == f"{told} (48 of 320 rollouts; success of all rollouts 72.5%)"
    assert [share in told for share in ("20.0%", "30.0%", "15.0%")] == [True] * 3
    assert dict(facts_of([{"step": 1.0, "rollouts/dropped": 0.0}], {}, None, None))["dropped rollouts"] == "none"
    assert "dropped rollouts" not in dict(facts_of([{"step": 1.0}], {}, None, None))  # a run of an older version

    def sampling(**settings):
        return sampling_of({"rollout": {"val_kwargs": settings}})

    assert sampling(do_sample=False, temperature=1.0, n=1).startswith("greedy")
    assert sampling(do_sample=True, temperature=0.0, n=1).startswith("greedy")
    assert "temperature 0.7" in sampling(do_sample=True, temperature=0.7, n=4)
    assert sampling_of({}) is None


def test_guards_that_were_not_raised_are_not_in_a_sample(tmp_path):
    rewards = {"score": 1.0, "format": 0.5, "guard/length": 0.0, "guard/repetition": 1.0}
    _, page = page_of(tmp_path, samples=[sample(rewards=rewards)])
    assert "format 0.5" in page.text
    assert "guard/repetition 1" in page.text
    assert "guard/length" not in page.text


@pytest.mark.parametrize(
    "damage",
    [{"segments": 3}, {"segments": [{"author": 1}]}, {"reward": "1"}, {"rewards": {"a": "b"}}, {"tool_calls": ["x"]}],
)
def test_invalid_samples_are_skipped_in_the_report(tmp_path, damage):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1}\n')
    (tmp_path / "samples.json").write_text(json.dumps([sample() | damage, sample(uid="fine"), 3]))
    text = report_from_run(tmp_path).read_text()
    assert text.count('class="task"') == 1
    incomplete = {"uid": "x", "reward": 1.0, "rewards": {}, "stop": "finished", "tool_calls": []}
    (tmp_path / "samples.json").write_text(json.dumps([incomplete | {"segments": [{"author": "model", "text": "4"}]}]))
    assert report_from_run(tmp_path).read_text().count('class="task"') == 1
    (tmp_path / "samples.json").write_text('{"uid": 1}')
    assert 'class="task"' not in report_from_run(tmp_path).read_text()
