"""The pages in a real browser: clicks, displayed values, and escaping of hostile text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import browser
import pytest
from viewer_runs import HOSTILE, group, model, rollout, write_metrics, write_run

from agentrl.store import TrajectoryStore
from agentrl.types.excluded import Excluded
from agentrl.types.operation import Operation, OperationKind
from agentrl.types.rollout import Group, Outcome, Rollout, Stop
from agentrl.types.sample import Sample
from agentrl.types.trajectory import Author, Segment, Trajectory

pytestmark = pytest.mark.slow

if browser.find() is None and not os.environ.get("CI"):
    pytest.skip("no chromium here: make browser", allow_module_level=True)  # in CI, a missing chromium fails


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play, browser.launch(play) as opened:
        yield opened


@pytest.fixture
def visit(chromium, tmp_path):
    """Opens a page on some runs; any console error of the page fails the test."""
    processes, complaints = [], []

    def open_page(*folders: Path, size=(1280, 800), scheme="light", place="rollouts"):
        command = [sys.executable, "-m", "agentrl", "view", *map(str, folders)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        address = re.search(r"http\S+", processes[-1].stdout.readline())[0]
        context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
        page.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith(address) else None)
        page.goto(f"{address}#/{place}" if place else address)
        page.wait_for_selector(".row, .empty, .chart, .constant")
        return page

    yield open_page
    for process in processes:
        process.terminate()
        process.communicate()
    assert complaints == []


def is_complaint(said) -> bool:
    """Except errors from a server that a test stops, and from a run that it deletes."""
    return said.type == "error" and not re.search(r"status of (503|400)", said.text)


def credited(groups: list[Group]) -> list[Sample]:
    """Every trained token has advantage 1 in a rollout with reward, else -1."""
    samples = []
    for each in groups:
        for number, one in enumerate(each.rollouts):
            (trajectory,) = one.trajectories
            signed = [float(mask) * (1 if one.reward else -1) for mask in trajectory.loss_mask]
            rollout_id = f"{each.uid}/{number}"
            samples.append(
                Sample(trajectory.token_ids, trajectory.loss_mask, [1.0] * len(signed), signed, rollout_id=rollout_id)
            )
    return samples


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "run"
    for step in (1, 2, 3):
        siblings = [
            rollout("right", reward=1.0, calls=(("search", Outcome.OK),), ids=(3, 4, 5), duration_s=2.0),
            rollout("wrong", calls=(("search", Outcome.TIMEOUT),), ids=(3, 9, 5), stop=Stop.MAX_TURN_TOKENS),
            rollout("broke", error="no disk", stop=Stop.ERROR, ids=(3, 4, 5)),
        ]
        groups = [
            group(f"group{step}", *siblings, index=4),
            *(group(f"{step}-{row}", rollout(reward=1.0), index=row + 10) for row in range(60)),
        ]
        write_run(folder, {step: groups}, samples=credited(groups))
    write_metrics(
        folder, [{"step": step, "reward/mean": step / 3, "stop/error": 0.0, "actor/loss": -step} for step in (1, 2, 3)]
    )
    write_metrics(folder, [{"step": 2, "warning": "reward stands still"}], "warnings.jsonl")
    return folder


def status(page) -> str:
    page.wait_for_selector(".scroller[aria-busy=false]")
    return page.locator(".status").text_content()


def expect_status(page, text: str) -> None:
    page.wait_for_function("text => document.querySelector('.status')?.textContent === text", arg=text)


def test_filters_sorting_and_the_address(visit, run):
    page = visit(run)
    expect_status(page, "189 of 189 rollouts")
    page.select_option("[name=stop]", "max_turn_tokens")
    expect_status(page, "3 of 189 rollouts")
    page.check("[name=failed]")
    expect_status(page, "0 of 189 rollouts")
    assert page.locator(".empty").is_visible()
    page.uncheck("[name=failed]")
    page.select_option("[name=stop]", "")
    page.select_option("[name=tool]", "search")
    page.select_option("[name=outcome]", "ok")
    page.fill("[name=step_min]", "2")
    expect_status(page, "2 of 189 rollouts")
    page.reload()
    expect_status(page, "2 of 189 rollouts")  # the address alone restores the filters
    assert page.input_value("[name=outcome]") == "ok"
    page.click("text=reset")
    expect_status(page, "189 of 189 rollouts")
    page.click("[data-column=duration_s] button")
    page.wait_for_function("() => document.querySelector('[data-column=duration_s]').ariaSort === 'descending'")
    assert "2 s" in page.locator(".row").first.text_content()
    page.click("[data-column=reward] button")
    page.wait_for_function("() => document.querySelector('[data-column=reward]').ariaSort === 'descending'")
    page.click("[data-column=reward] button")
    page.wait_for_function("() => document.querySelector('.row .reward').textContent === '0'")


def columns(page) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('.head .cell')].map((node) => node.dataset.column)")


def test_prompt_answer_score_and_tools_come_first_and_guards_only_where_raised(visit, tmp_path):
    quiet = {"format": 0.5, "guard/length": 0.0, "guard/repetition": 0.0}
    groups = [group("a", rollout("The answer\nis 7", rewards=quiet, calls=(("search", Outcome.OK),)))]
    page = visit(write_run(tmp_path / "run", {1: groups}))
    page.wait_for_selector("[data-cell=answer] >> text=The answer is 7")
    assert page.locator("[data-cell=prompt]").first.text_content() == "?"
    assert columns(page)[:5] == ["prompt", "answer", "reward", "reward/format", "outcomes"]
    assert not [name for name in columns(page) if "guard" in name]
    page.locator(".row").first.click()
    page.wait_for_selector("aside")
    assert "guard" not in page.locator("aside").text_content()
    assert "format" in page.locator("aside").text_content()
    page.click("text=group side by side")
    page.wait_for_selector(".attempt .chip")
    assert page.locator(".attempt .chip").all_text_contents() == ["format 0.5"]
    raised = rollout("ok ok ok", rewards={**quiet, "guard/repetition": 1.0})
    page = visit(write_run(tmp_path / "raised", {1: [*groups, group("b", raised)]}))
    page.wait_for_selector(".row")
    assert page.locator("[data-cell=guards] .chip").all_text_contents() == ["repetition"]


def test_columns_are_chosen_and_remembered(visit, run):
    page = visit(run)
    assert "uid" not in columns(page)
    page.click(".menu summary")
    page.check("#column-uid")
    page.uncheck("#column-answer")
    page.wait_for_selector(".row >> text=group3")
    page.reload()
    page.wait_for_selector(".row")
    assert "uid" in columns(page)
    assert "answer" not in columns(page)
    page.click(".menu summary")
    page.click("#columns-default")
    assert "uid" not in columns(page)


def test_existing_curves_are_shown_first(visit, run, tmp_path):
    assert visit(run, place="").evaluate("document.body.dataset.page") == "curves"
    bare = write_run(tmp_path / "bare", {1: [group("a", rollout())]})
    assert visit(bare, place="").evaluate("document.body.dataset.page") == "rollouts"


@pytest.fixture
def timed(tmp_path) -> Path:
    rows = [
        {"step": step, "reward/mean": 10.0**-step, "timing_s/step": 60.0, "perf/tokens_per_s": 100.0 * step}
        for step in range(1, 6)
    ]
    write_metrics(tmp_path, rows)
    return tmp_path


CHART = "[data-metric='reward/mean']"


def ticks(page, edge: str) -> list[str]:
    """Labels of the x axis (which are centred) or the y axis."""
    anchor = {"x": "middle", "y": "end"}[edge]
    return page.evaluate(
        f'[...document.querySelectorAll("{CHART} text.tick[text-anchor={anchor}]")].map(n => n.textContent)'
    )


def test_curves_have_axis_titles_a_log_axis_and_three_kinds_of_x(visit, timed):
    page = visit(timed, place="curves?metric=reward")
    titles = f"{CHART} text.title"
    assert page.locator(titles).all_text_contents() == ["step", "reward"]
    assert ticks(page, "x") == ["1", "2", "3", "4", "5"]
    page.check("[name=log]")
    assert ticks(page, "y") == ["1.00e-5", "0.0001", "0.001", "0.01", "0.1"]
    page.select_option("[name=x]", "time")
    assert ticks(page, "x") == ["1", "2", "3", "4", "5"]
    assert "min" in page.locator(titles).first.text_content()
    page.select_option("[name=x]", "tokens")
    assert ticks(page, "x")[-1] == "80k"
    page.reload()
    page.wait_for_selector(CHART)
    assert page.input_value("[name=x]") == "tokens"
    assert page.is_checked("[name=log]")


@pytest.mark.nightly
def test_a_drag_zooms_all_charts_and_a_double_click_resets(visit, timed):
    page = visit(timed, place="curves")
    box = page.locator(f"{CHART} svg").first.bounding_box()
    left, right, middle = box["x"] + box["width"] * 0.55, box["x"] + box["width"] * 0.97, box["y"] + box["height"] / 2
    page.mouse.move(left, middle)
    page.mouse.down()
    page.mouse.move(right, middle, steps=4)
    page.mouse.up()
    page.wait_for_function("() => location.hash.includes('from=')")
    assert ticks(page, "x")[0] != "1"
    assert len(page.locator("[data-metric='timing_s/step'] .dot, .constant").all()) > 0
    page.locator(f"{CHART} svg").first.dblclick()
    page.wait_for_function("() => !location.hash.includes('from=')")
    assert ticks(page, "x")[0] == "1"


@pytest.mark.nightly
def test_smoothing_draws_an_average_over_the_pale_line(visit, run):
    page = visit(run, place="curves?metric=loss")
    assert page.locator(".line.faint").count() == 0
    page.evaluate(
        "const s = document.querySelector('[name=smooth]'); s.value = 0.5; s.dispatchEvent(new Event('input'))"
    )
    page.wait_for_selector(".line.faint")
    last = page.locator("[data-metric='actor/loss'] .readout b").text_content()
    assert float(last) == pytest.approx((-3 * 4 - 2 * 2 - 1) / 7, abs=1e-3)  # weights 1/2, 1/4, 1/8 over their sum


def test_the_runs_of_a_folder_are_chosen_and_overlaid(visit, tmp_path):
    for place, value in (("a/1", 0.1), ("a/2", 0.2), ("b", 0.3)):
        folder = write_run(tmp_path / place, {1: [group(f"of-{value}", rollout())]})
        write_metrics(folder, [{"step": step, "reward/mean": value * step} for step in (1, 2)])
    page = visit(tmp_path, place="curves?metric=reward")
    page.wait_for_selector(f"{CHART} .line")
    assert page.locator(f"{CHART} .line").count() == 3
    assert sorted(page.locator(".chooser bdi").all_text_contents()) == ["a/1", "a/2", "b"]
    page.locator(".chooser label", has_text="b").click()
    page.wait_for_function(f'() => document.querySelectorAll("{CHART} .line").length === 2')
    page.reload()
    page.wait_for_selector(f"{CHART} .line")
    assert page.locator(f"{CHART} .line").count() == 2
    page.click("#tab-rollouts")
    page.select_option("[aria-label=run]", label="a/2")
    page.wait_for_selector(".row[href*='at_uid=of-0.2&']")


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen_and_no_value_is_clipped(visit, run, width):
    rewards = {"format": 0.25, "a_long_name_of_a_reward_part": 0.123456, "guard/length": 1.0}
    write_run(run, {4: [group("long", rollout("word " * 80, rewards=rewards), index=4)]})
    page = visit(run, size=(width, 844))

    def fits() -> None:
        page.wait_for_timeout(200)
        wide = "[document.documentElement, document.body, document.querySelector('#page')]"
        assert page.evaluate(f"{wide}.filter((each) => each && each.scrollWidth > innerWidth).length") == 0
        clipped = """() => [...document.querySelectorAll('.row .cell, aside dd, .readout, .attempt > *')]
            .filter((node) => !['prompt', 'answer'].includes(node.dataset.cell) && node.clientWidth
                && node.scrollWidth > node.clientWidth + 1).map((node) => node.outerHTML)"""
        assert page.evaluate(clipped) == []
        below = """() => [...document.querySelectorAll('.row')].filter((row) => row.lastChild &&
            row.lastChild.getBoundingClientRect().bottom > row.getBoundingClientRect().bottom + 1).length"""
        assert page.evaluate(below) == 0

    page.wait_for_selector(".row >> text=word word")
    fits()
    page.locator(".row").first.click()
    page.wait_for_selector(".block")
    fits()
    page.click("text=group side by side")
    page.wait_for_selector(".column .block")
    fits()
    page.click("#tab-curves")
    page.wait_for_selector(".chart")
    fits()


def test_text_is_searched_in_messages(visit, run):
    page = visit(run)
    page.fill("[name=q]", "WRONG")
    expect_status(page, "3 of 189 rollouts")


def test_only_visible_rows_are_rendered(visit, run):
    page = visit(run)
    expect_status(page, "189 of 189 rollouts")
    assert page.locator(".row").count() < 60
    page.evaluate("document.querySelector('.scroller').scrollTop = 1e6")
    page.wait_for_selector(".row[href*='at_uid=1-59&']:not(.waiting)")
    assert page.locator(".row").count() < 60


def test_rollout_page_colours_tokens_by_the_selected_value(visit, run):
    page = visit(run)
    page.fill("[name=q]", "right")
    expect_status(page, "3 of 189 rollouts")
    page.locator(".row").first.click()
    page.wait_for_selector(".block")
    assert page.locator(".block header b").all_text_contents() == ["prompt", "model, turn 0", "tool", "model, turn 1"]
    assert page.locator(".call .outcome").text_content() == "ok"
    assert page.locator(".timeline .bar").count() == 1
    assert "shown as ids" in page.locator(".note").text_content()  # this run has no tokenizer
    token = page.locator(".by-model .token").nth(2)
    colours = set()
    for mode in ("Author", "Log-probability", "Advantage", "Policy version"):
        page.click(f"role=button[name='{mode}']")
        colours.add(token.evaluate("node => getComputedStyle(node).backgroundColor"))
        assert page.locator(".legend").is_visible()
    assert len(colours) == 4
    token.hover()
    tip = page.locator("#hover").inner_text()
    assert [value in tip for value in ("-1.5", "22.31%", "advantage", "version", "author")] == [True] * 5
    page.reload()
    page.wait_for_selector("[aria-pressed=true] >> text=Policy version")
    page.click("role=button[name=Messages]")
    assert page.locator(".block header b").all_text_contents() == ["user", "assistant"]
    page.wait_for_selector("#next")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("h1 >> text=Step 2")
    page.click("#previous")
    page.wait_for_selector("h1 >> text=Step 3")
    page.click("text=table")
    expect_status(page, "3 of 189 rollouts")


def test_side_by_side_view_marks_the_first_different_token(visit, run):
    page = visit(run)
    page.fill("[name=q]", "right")
    expect_status(page, "3 of 189 rollouts")
    page.locator(".row").first.click()
    page.click("text=group side by side")
    page.wait_for_selector(".column")
    place = "each => each.querySelector('.differs')?.facts.place ?? null"
    parted = f"() => [...document.querySelectorAll('.column')].map({place})"
    assert page.evaluate(parted) == [3, 3, None]
    page.get_by_role("button", name="reference").nth(1).click()
    assert page.evaluate(parted) == [3, 3, 3]


def test_two_runs_are_overlaid_and_side_by_side(visit, run, tmp_path):
    other = write_run(tmp_path / "other", {3: [group("else", rollout("right", reward=0.5, ids=(3, 4, 8)), index=4)]})
    write_metrics(other, [{"step": step, "reward/mean": 0.1 * step} for step in (1, 2, 5)])
    page = visit(run, other)
    page.click("text=Curves")
    page.wait_for_selector("[data-metric='reward/mean'] .line.s1")
    assert page.locator("[data-metric='reward/mean'] .line.s0").count() >= 1
    page.click("text=Rollouts")
    page.select_option("[aria-label=run]", "1")
    expect_status(page, "1 of 1 rollouts")
    page.locator(".row").first.click()
    page.click("text=this task in another run")
    page.wait_for_selector(".column .block")
    assert page.locator(".column").count() == 2
    page.wait_for_selector(".column .differs")
    page.reload()
    page.wait_for_selector(".column .differs")
    assert page.locator(".column .swatch.s1").count() == 1


def test_curves_can_be_searched_and_show_warnings(visit, run):
    page = visit(run)
    page.click("text=Curves")
    page.wait_for_selector("[data-metric='actor/loss'] svg .warning")
    assert "step 2 reward stands still" in page.locator(".warned").text_content()
    assert page.locator(".constant").all_text_contents() == ["stop/error 0"]
    page.fill("[name=q]", "LOSS")
    page.wait_for_function("() => document.querySelector('.status').textContent === '1 of 3 metrics'")


def test_hostile_text_stays_text_on_every_page(visit, tmp_path):
    bad = rollout(HOSTILE, calls=((HOSTILE, Outcome.TOOL_ERROR),), error=HOSTILE, rewards={HOSTILE[:-30]: 1.0})
    folder = write_run(tmp_path / "<img src=x onerror=window.hit=1>", {1: [group(HOSTILE, bad, bad, source=HOSTILE)]})
    write_metrics(folder, [{"step": step, f"{HOSTILE}/a": step} for step in (1, 2)])
    write_metrics(folder, [{"step": 1, "warning": HOSTILE}], "warnings.jsonl")
    page = visit(folder)

    def harmless(*wanted: str) -> None:
        page.wait_for_timeout(300)
        assert page.evaluate("window.hit") is None
        assert page.evaluate("document.querySelectorAll('main script, main img, main iframe, [onerror]').length") == 0
        text = page.evaluate("document.body.textContent")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x07]", text)
        assert [part for part in wanted if part not in text] == []

    harmless("<script>window.hit=1</script><img")
    page.locator(".row").first.click()
    page.wait_for_selector(".block")
    harmless("<script>", "⟨U+202E⟩evil⟨U+0007⟩⟨U+D83D⟩⟨U+2066⟩javascript:")
    page.click("role=button[name=Messages]")
    harmless("⟨U+202E⟩evil")
    assert page.evaluate(
        "[...document.querySelectorAll('a')].every(each => each.getAttribute('href').startsWith('#/'))"
    )
    page.click("text=group side by side")
    page.wait_for_selector(".column")
    harmless("⟨U+202E⟩")
    page.go_back()
    page.wait_for_selector(".block")
    page.click("text=this task at other steps")
    page.wait_for_selector(".column")
    harmless()
    page.click("text=Curves")
    page.wait_for_selector(".warned")
    harmless("⟨U+202E⟩evil")


def test_dropped_groups_are_one_click_away_and_filtered_by_reason(visit, run):
    hostile = Rollout([], Stop.ERROR, error=HOSTILE)
    groups = [group("even", *[Rollout([], Stop.FINISHED, {"score": 0.5})] * 2), group(HOSTILE, hostile)]
    reasons = {"even/0": Excluded.EQUAL_REWARDS, "even/1": Excluded.EQUAL_REWARDS, f"{HOSTILE}/0": Excluded.FAILED}
    TrajectoryStore(run / "trajectories/excluded", split="excluded").write(2, groups, excluded=reasons)
    page = visit(run)
    expect_status(page, "189 of 189 rollouts, 3 more in dropped groups")
    page.click("#dropped")
    expect_status(page, "3 of 192 rollouts")
    page.select_option("[name=excluded]", "equal_rewards")
    expect_status(page, "2 of 192 rollouts")
    row = page.locator(".row").first
    shown = {name: row.locator(f"[data-cell={name}]").text_content() for name in ("uid", "group_size", "excluded")}
    assert shown == {"uid": "even", "group_size": "2", "excluded": "equal_rewards"}
    page.select_option("[name=excluded]", "failed")
    expect_status(page, "1 of 192 rollouts")
    page.locator(".row").first.click()
    page.wait_for_selector("text=No tokens or messages of this rollout are saved.")
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.querySelectorAll('main script, main img, [onerror]').length") == 0
    assert "⟨U+202E⟩evil" in page.evaluate("document.body.textContent")
    page.click("text=group side by side")
    page.wait_for_selector(".column")


def test_long_texts_are_shortened_and_shown_in_full_on_request(visit, tmp_path):
    long = rollout("x" * 50_000, ids=tuple(range(10, 5010)))
    page = visit(write_run(tmp_path, {1: [group("a", long)]}))
    page.locator(".row").first.click()
    page.wait_for_selector(".block")
    assert page.locator(".token").count() < 3100
    page.click("text=show all 5,000 tokens")
    page.locator(".block").last.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelectorAll('.token').length === 5004")
    page.click("role=button[name=Messages]")
    page.click("text=show all 50,000 characters")
    assert "x" * 50_000 in page.locator(".talk").text_content()


def test_long_rollouts_render_tokens_only_near_the_viewport(visit, tmp_path):
    turns = [each for _ in range(100) for each in (model(*range(200)), Segment(Author.TOOL, range(300)))]
    page = visit(write_run(tmp_path, {1: [group("a", Rollout([Trajectory(turns)], Stop.FINISHED))]}))
    page.locator(".row").first.click()
    page.wait_for_selector(".block")
    assert page.locator(".block").count() == 200
    assert 3000 <= page.locator(".token").count() < 10_000
    assert page.locator(".tokens").last.text_content().startswith("0 1 2 3 ")
    page.locator(".block").last.scroll_into_view_if_needed()
    place = "() => document.querySelector('.block:last-child .token:last-child')?.facts.place"
    page.wait_for_function(f"() => ({place})() === 49_999")
    page.locator(".token").last.hover()
    assert "49999" in page.locator("#hover").inner_text()


@pytest.mark.nightly
def test_late_response_is_not_shown_on_a_newer_page(visit, run):
    page = visit(run)
    late = []
    page.route("**/api/rollout?*uid=1-5&*", lambda route: late.append(route))

    def go(page_name: str, uid: str = "") -> None:
        words = f"at_split=train&at_step=1&at_uid={uid}&at_number=0" if uid else ""
        page.evaluate(f"location.hash = '#/{page_name}?{words}'")

    go("rollout", "1-6")
    page.wait_for_selector("h1 code >> text=1-6")
    go("rollout", "1-5")  # within the page
    go("rollout", "1-7")
    page.wait_for_selector("h1 code >> text=1-7")
    late.pop().continue_()
    page.wait_for_timeout(500)
    assert page.locator("h1 code").all_text_contents() == ["1-7"]
    go("rollouts")
    page.wait_for_selector(".row")
    go("rollout", "1-5")  # from another page
    page.wait_for_function("() => document.body.dataset.page === 'rollout'")
    go("rollouts")
    page.wait_for_selector(".row")
    go("rollout", "1-5")
    go("rollout", "1-8")
    page.wait_for_selector("h1 code >> text=1-8")
    assert len(late) == 2
    for route in late:
        route.continue_()
    page.wait_for_timeout(500)
    assert page.locator("h1 code").all_text_contents() == ["1-8"]
    page.wait_for_selector("#next")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("h1 code >> text=1-9")


@pytest.mark.nightly
def test_keyboard_navigation_keeps_the_position(visit, run):
    page = visit(run)
    expect_status(page, "189 of 189 rollouts")

    def focused() -> str:
        return page.evaluate("document.activeElement.id")

    page.focus("#sort-reward")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('[data-column=reward]').ariaSort === 'descending'")
    assert focused() == "sort-reward"
    page.focus("#row-0")
    for _ in range(40):
        page.keyboard.press("Tab")  # which scrolls, so rows are drawn again
    assert focused() == "row-40"
    page.keyboard.press("Enter")
    page.wait_for_selector("#next")
    assert focused() == "page"  # so that the next Tab is in the opened page
    page.focus("role=button[name='Advantage']")
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-pressed=true] >> text=Advantage")
    assert focused() == "say-Advantage"
    page.focus("#next")
    before = page.locator("h1").text_content()
    page.keyboard.press("Enter")
    page.wait_for_function("before => document.querySelector('h1').textContent !== before", arg=before)
    page.wait_for_function("() => document.activeElement.id === 'next'")


def test_inputs_and_buttons_have_accessible_names(visit, run):
    page = visit(run)
    named = "node.ariaLabel || node.textContent.trim() || node.closest('label')?.textContent"
    every = "document.querySelectorAll('button, input, select, a, [role=table], [role=img]')"
    nameless = f"() => [...{every}].filter((node) => node.offsetParent && !({named})).map((node) => node.outerHTML)"
    for tab in ("curves", "rollouts"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector(".row" if tab == "rollouts" else ".chart")
        assert page.evaluate(nameless) == []
        assert tab in page.title()
    page.locator(".row").first.click()
    page.wait_for_selector("#next")
    assert page.evaluate(nameless) == []
    assert "group3" in page.title()


@pytest.mark.nightly
def test_a_run_deleted_while_it_is_viewed_is_reported(visit, run):
    page = visit(run)
    expect_status(page, "189 of 189 rollouts")
    run.rename(run.with_name("moved"))
    page.wait_for_selector(".problem >> text=was deleted")
    page.locator(".row").first.click()
    page.wait_for_selector("main .problem")
    page.click("#tab-curves")
    page.wait_for_selector("text=no metrics yet")
    run.with_name("moved").rename(run)
    page.wait_for_selector(".problem", state="detached")


def test_page_of_a_running_run_updates_without_reload(visit, run):
    page = visit(run)
    expect_status(page, "189 of 189 rollouts")
    page.evaluate("window.kept = true")
    write_run(run, {4: [group("fresh", rollout(reward=1.0))]})
    page.wait_for_selector(".row[href*='at_uid=fresh&']")
    expect_status(page, "190 of 190 rollouts")
    page.evaluate("document.querySelector('.scroller').scrollTop = 2000")
    write_run(run, {5: [group("fresher", rollout(reward=1.0))]})
    page.click(".news")  # new rows do not move the visible ones
    page.wait_for_selector(".row[href*='at_uid=fresher&']")
    page.click("text=Curves")
    page.wait_for_selector("[data-metric='reward/mean']")
    write_metrics(run, [{"step": 4, "reward/mean": 0.123}])
    page.wait_for_selector("[data-metric='reward/mean'] .readout >> text=0.123")
    assert page.evaluate("window.kept")


def test_a_damaged_file_is_reported_and_the_rest_works(visit, run):
    path = run / "trajectories/train/step-000002.parquet"
    path.write_bytes(b"nonsense")
    page = visit(run)
    page.wait_for_selector(f".problem >> text={path.name}")
    expect_status(page, "126 of 126 rollouts")


def test_stopped_server_is_named_in_the_error(visit, run, chromium):
    page = visit(run)
    page.route("**/api/state*", lambda route: route.fulfill(status=503))
    page.wait_for_selector("text=The server has stopped")
    page.unroute("**/api/state*")
    page.wait_for_selector("text=The server has stopped", state="detached")


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800])
def test_chart_elements_stay_inside_the_picture(visit, run, tmp_path, width, scheme):
    page = visit(run, size=(width, 800), scheme=scheme)
    for name in ("rollouts", "curves"):
        page.click(f"nav >> text={name.capitalize()}")
        page.wait_for_selector(".row" if name == "rollouts" else ".chart")
        page.screenshot(path=tmp_path / f"{name}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("nav >> text=Rollouts")
    page.locator(".row").first.click()
    page.wait_for_selector(".block")
    page.screenshot(path=tmp_path / "rollout.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert len(list(tmp_path.glob("*.png"))) == 3


def with_sub_agents() -> Rollout:
    """A main conversation that started two agents, and was then replaced by a summary."""
    whole = rollout("5", reward=1.0, calls=(("delegate", Outcome.OK),))
    agents = [rollout(f"agent {number}", ids=(8 + number,)).trajectories[0] for number in range(2)]
    after = rollout("5", ids=(9,)).trajectories[0]
    openings = [
        ("task", 2, {}),
        ("messages", 0, {"parent": 2, "segment": 1}),
        ("messages", 1, {"parent": 2, "segment": 1}),
    ]
    openings.append(("restart", 3, {"parent": 2, "remark": HOSTILE}))
    operations = [
        Operation(OperationKind(kind), number, 0, 0, 1, 0, 1, 0, json.dumps(detail))
        for kind, number, detail in openings
    ]
    after.weight = 0.0
    whole.tool_calls = [replace(each, trajectory=2) for each in whole.tool_calls]
    return replace(whole, trajectories=[*agents, whole.trajectories[0], after], operations=operations)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [(1280, 800), (390, 780)])
@pytest.mark.parametrize("shown", ["", "&view=messages"])
def test_trajectories_of_a_rollout_are_a_tree(visit, tmp_path, size, shown):
    folder = write_run(tmp_path / "run", {1: [group("a", with_sub_agents())]})
    page = visit(folder, size=size)
    page.goto(f"{page.url.partition('#')[0]}#/rollout?at_split=train&at_step=1&at_uid=a&at_number=0{shown}")
    rows = page.locator(".tree li")
    rows.first.wait_for()
    assert [re.match(r"trajectory \d", text)[0][-1] for text in rows.all_text_contents()] == ["2", "0", "1", "3"]
    assert "sub-agent: started in turn 0 of trajectory 2" in rows.nth(1).text_content()
    assert "after a summary: continues trajectory 2" in rows.nth(3).text_content()
    assert [("not trained on" in text) for text in rows.all_text_contents()] == [False, False, False, True]
    assert [text[11] for text in page.locator(".trajectory h3").all_text_contents()] == ["2", "0", "1", "3"]
    lefts = [rows.nth(place).bounding_box()["x"] for place in range(4)]
    assert lefts[0] == lefts[3] < lefts[1] == lefts[2]
    rows.nth(2).get_by_role("button").click()
    assert page.evaluate("document.activeElement.id") == "trajectory-1"
    if not shown:
        assert page.locator(".started button").all_text_contents() == ["trajectory 0", "trajectory 1"]
    assert page.evaluate("document.scrollingElement.scrollWidth") <= size[0]
    assert page.evaluate("window.hit") is None
