"""Prompts that are too long are refused, dropped, or cut; here a token is a character."""

from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.data import DataConfig
from agentrl.data.fields import FieldError
from agentrl.data.prompt_length import Measure, cut_prompt, fit_prompt, fit_prompts, prompt_lengths
from agentrl.data.tasks import load_tasks
from agentrl.errors import DataError
from agentrl.types.task import Task

CHARACTERS = Measure(lambda task: sum(len(message["content"]) for message in task.messages), list)


def load(tmp_path, lengths):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"prompt": "abcdefghi"[:length]}) + "\n" for length in lengths))
    return load_tasks([str(path)], DataConfig())


def config(limit, **options):
    return DataConfig(max_prompt_length=limit, **options)


def contents(tasks):
    return [task.messages[0]["content"] for task in tasks]


def test_fitting_prompts_are_unchanged(tmp_path):
    tasks = load(tmp_path, (1, 9, 2, 7))
    assert fit_prompts(tasks, CHARACTERS, config(9)) == (tasks, "")


def test_longer_prompts_are_dropped_before_others_are_cut(tmp_path):
    for truncation in ("error", "left"):
        how = config(5, filter_overlong_prompts=True, truncation=truncation)
        kept, told = fit_prompts(load(tmp_path, (1, 9, 2, 7)), CHARACTERS, how)
        assert [task.index for task in kept] == [0, 2]
        assert told == "2 of 4 prompts are longer than 5 tokens: dropped"


@pytest.mark.parametrize(("side", "nine"), [("left", "efghi"), ("middle", "abchi"), ("right", "abcde")])
def test_longer_prompts_are_cut(tmp_path, side, nine):
    cut, told = fit_prompts(load(tmp_path, (1, 9, 5)), CHARACTERS, config(5, truncation=side))
    assert contents(cut) == ["a", nine, "abcde"]
    assert [task.index for task in cut] == [0, 1, 2]
    assert told == f"1 of 3 prompts are longer than 5 tokens: the last user text is cut ({side})"


def test_longer_prompts_are_refused_with_file_and_row(tmp_path):
    with pytest.raises(DataError) as caught:
        fit_prompts(load(tmp_path, (1, 9, 2, 7)), CHARACTERS, config(5))
    assert "t.jsonl row 1 (line 2): its prompt has 9 tokens, data.max_prompt_length is 5 (2 of 4 rows" in str(
        caught.value
    )
    with pytest.raises(DataError, match="no row is left"):
        fit_prompts(load(tmp_path, (6, 9)), CHARACTERS, config(5, filter_overlong_prompts=True))


def test_a_row_that_cannot_be_measured_is_named(tmp_path):
    def refuse(task):
        if task.index == 1:
            raise DataError("no such tool")
        return 1

    with pytest.raises(DataError, match=r"t\.jsonl row 1 \(line 2\): no such tool"):
        fit_prompts(load(tmp_path, (1, 1)), Measure(refuse, list), config(5))


def test_prompts_that_no_cut_can_shorten_are_refused_with_the_reason(tmp_path):
    heavy = Measure(lambda task: 7 + len(task.messages[0]["content"]), list)
    with pytest.raises(DataError, match=r"row 0 .*7 tokens even without the text of its last user message, .* 5"):
        fit_prompts(load(tmp_path, (3,)), heavy, config(5, truncation="left"))
    no_user = Task([{"role": "system", "content": "abcdefghi"}])
    with pytest.raises(FieldError, match=r"its prompt has 9 tokens, .* no user text to cut"):
        cut_prompt(no_user, CHARACTERS, 5, "left")


def test_cutting_the_middle_never_creates_a_control_token():
    task = Task([{"role": "user", "content": "ab<|_______|>yz"}])
    measure = Measure(CHARACTERS.length_of, list, ["<||>"])
    (message,) = cut_prompt(task, measure, 8, "middle").messages  # with 8 characters the ends are ab<| and |>yz
    assert message["content"] == "ab<|>yz"


@given(
    texts=st.lists(st.text("ab ", max_size=12), min_size=3, max_size=3),
    limit=st.integers(1, 30),
    side=st.sampled_from(["left", "middle", "right"]),
)
def test_only_the_last_user_text_is_cut_and_no_more_than_needed(texts, limit, side):
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, ["sys", *texts], strict=True)]
    task, others = Task(messages), len("sys") + len(texts[0]) + len(texts[1])
    try:
        cut = cut_prompt(task, CHARACTERS, limit, side)
    except FieldError:
        assert others > limit
        return
    assert list(cut.messages[:3]) == messages[:3]
    assert CHARACTERS.length_of(cut) == min(limit, others + len(texts[2]))
    kept = cut.messages[3]["content"]
    num_tail = {"left": len(kept), "middle": len(kept) // 2, "right": 0}[side]
    assert kept == texts[2][: len(kept) - num_tail] + texts[2][len(texts[2]) - num_tail :]
    assert task.messages[3]["content"] == texts[2]  # the row itself is not changed


def many(tmp_path, num_rows):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"prompt": "x" * (1 + row % 7), "row": row}) + "\n" for row in range(num_rows)))
    return load_tasks([str(path)], DataConfig())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_threads", [1, 2, 5, 64])
def test_any_number_of_threads_measures_the_same_in_the_same_order(tmp_path, num_threads):
    tasks, threads = many(tmp_path, 1500), set()

    def length_of(task):
        threads.add(threading.get_ident())
        time.sleep(0)  # lets the other thread run
        return CHARACTERS.length_of(task)

    assert prompt_lengths(tasks, length_of, num_threads) == [1 + row % 7 for row in range(1500)]
    assert len(threads) <= num_threads + 1
    assert (len(threads) > 1) == (num_threads > 1)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_first_bad_row_is_named_with_any_number_of_threads(tmp_path, num_threads):
    def length_of(task):
        if task.index in (700, 1400):
            raise DataError("names no tool")
        return 1

    with pytest.raises(DataError, match=r"many.jsonl row 700 \(line 701\): names no tool"):
        prompt_lengths(many(tmp_path, 1500), length_of, num_threads)


def test_single_added_task_is_treated_as_a_row():
    task = Task([{"role": "user", "content": "abcdefghi"}])
    assert fit_prompt(task, CHARACTERS, config(9)) is task
    assert contents([fit_prompt(task, CHARACTERS, config(5, truncation="left"))]) == ["efghi"]
    for how in (config(5), config(5, truncation="left", filter_overlong_prompts=True)):
        with pytest.raises(FieldError, match=r"its prompt has 9 tokens, data.max_prompt_length is 5"):
            fit_prompt(task, CHARACTERS, how)
