"""Imports of other frameworks' logs as rollouts: values that a log does not have stay unknown."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import DataError
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.store.importers.formats import FORMATS, guess_format, reader_of
from agentrl.store.importers.importing import Imported, import_rollouts
from agentrl.types.rollout import Outcome


def lines(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def imported(source: Path, form: str, *reward_columns: str, skip_bad_rows: bool = False) -> Imported:
    folder = source.parent / "store"
    return import_rollouts(source, folder, form, reader_of(form, reward_columns), skip_bad_rows=skip_bad_rows)


def stored(source: Path, form: str, *reward_columns: str) -> list[StoredRollout]:
    imported(source, form, *reward_columns)
    return list(TrajectoryStore(source.parent / "store").scan())


def verl_line(**fields: object) -> dict[str, object]:
    return {"input": "user\n1+1?\nassistant\n", "output": "2", "gts": "2", "score": 1.0, "step": 7, **fields}


def places(rollouts: Sequence[StoredRollout]) -> list[tuple[int, str, int]]:
    return [(one.step, one.task.messages[0]["content"], one.number) for one in rollouts]


def test_verl_generation_dumps_are_imported(tmp_path: Path) -> None:
    """verl's `_dump_generations` writes one line per sample, with the reward's extra information."""
    dumped = [
        verl_line(acc=True, pred="2", request_id="r0"),
        verl_line(input="other", gts="3", score=-1),
        verl_line(output="3", score=0.0, acc=False, pred="3", request_id="r2"),
    ]
    lines(tmp_path / "dump/10.jsonl", [verl_line(step=10)])
    lines(tmp_path / "dump/7.jsonl", dumped)
    first, sibling, other, later = stored(tmp_path / "dump", "verl")
    assert places([first, sibling, other, later]) == [
        (7, "user\n1+1?\nassistant\n", 0),
        (7, "user\n1+1?\nassistant\n", 1),  # the same input, although another input came between
        (7, "other", 0),
        (10, "user\n1+1?\nassistant\n", 0),
    ]
    assert (first.task.uid, first.task.index) == (sibling.task.uid, 0)
    assert (other.task.index, later.task.index) == (1, 0)  # the same task at another step is the same row
    assert sibling.rollout.rewards == {"score": 0.0, "acc": 0.0}
    assert sibling.rollout.trajectories[0].messages[1:] == [{"role": "assistant", "content": "3"}]
    assert first.task.extra_info["logged"] == [{"pred": "2", "request_id": "r0"}, {"pred": "3", "request_id": "r2"}]
    assert first.task.ground_truth == "2"


def test_newer_verl_dumps_name_groups_and_trajectories(tmp_path: Path) -> None:
    """`uid` is SAMPLE_ROLLOUT_OUTPUT; each output of a session has the session's score."""
    keys = ["a_b_0_0", "a_b_0_1", "a_b_1_0", "c_0_0"]
    dumped = [verl_line(uid=key, output=key, input=key[-1]) for key in keys]
    rollouts = stored(lines(tmp_path / "3.jsonl", dumped), "verl")
    assert [(one.task.uid, one.number) for one in rollouts] == [("a_b", 0), ("a_b", 1), ("c", 0)]
    said = [[trajectory.messages[-1]["content"] for trajectory in one.rollout.trajectories] for one in rollouts]
    assert said == [["a_b_0_0", "a_b_0_1"], ["a_b_1_0"], ["c_0_0"]]


TRACE = {
    "turns": [
        {
            "node_id": "t0",
            "prompt_token_ids": [1, 2],
            "completion_token_ids": [3],
            "per_token_logps": [-0.5],
            "loss_mask": [0, 0, 1],
        }
    ]
}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TWO_CALLS = [CALL, {**CALL, "id": "c2", "function": {"name": "add", "arguments": '{"a": '}}]
DIALOGUE = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": None, "tool_calls": TWO_CALLS},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "no JSON"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "c3"}]},
]


def test_calls_of_a_conversation_are_matched_with_their_answers(tmp_path: Path) -> None:
    (one,) = stored(lines(tmp_path / "log.jsonl", [DIALOGUE]), "messages")
    calls = [(call.name, call.arguments, call.result, call.outcome, call.turn) for call in one.rollout.tool_calls]
    assert calls == [
        ("add", '{"a":1}', "2", Outcome.OK, 0),
        ("add", '{"a": ', "no JSON", Outcome.OK, 0),  # the model's text is kept, although it is not JSON
        ("add", '{"a":1}', "", Outcome.ABORTED, 1),
    ]
    (trajectory,) = one.rollout.trajectories
    functions = [call["function"]["arguments"] for call in trajectory.messages[1]["tool_calls"]]
    assert functions == [{"a": 1}, '{"a": ']
    assert one.task.messages == DIALOGUE[:1]


def test_answers_without_ids_are_matched_by_their_order(tmp_path: Path) -> None:
    tools = [{"role": "tool", "content": "2"}, {"role": "tool", "content": "3"}]
    (one,) = stored(lines(tmp_path / "log.jsonl", [[*DIALOGUE[:2], *tools]]), "messages")
    assert [call.result for call in one.rollout.tool_calls] == ["2", "3"]


def test_imported_rollouts_have_no_tokens_and_take_no_part_in_training(tmp_path: Path) -> None:
    (one,) = stored(lines(tmp_path / "log.jsonl", [{"messages": DIALOGUE, "reward": 1}]), "messages")
    assert one.rollout.reward == 1.0
    assert not one.rollout.valid
    assert [list(trajectory.segments) for trajectory in one.rollout.trajectories] == [[]]


def test_extra_columns_of_a_log_are_kept(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    row = {"messages": DIALOGUE, "tools": [tool], "score": 0.5, "rewards": {"style": 2}, "ground_truth": {"answer": 2}}
    named = {**row, "data_source": "sums", "uid": "u", "step": 4, "metadata": {"model": "m"}}
    path = lines(tmp_path / "log-000012.jsonl", [row, named])
    bare, full = stored(path, "messages")[::-1]
    assert (bare.step, bare.task.data_source) == (12, "unknown")  # the number at the end of its file name
    assert (full.step, full.task.uid, full.task.data_source) == (4, "u", "sums")
    assert full.rollout.rewards == {"style": 2.0, "score": 0.5}
    assert full.task.ground_truth == {"answer": 2}
    assert full.task.extra_info == {"tools": [tool], "logged": [{"metadata": {"model": "m"}}]}
    provenance = TrajectoryStore(tmp_path / "store").provenance(4)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert provenance == {"imported_from": "messages", "source_file": path.name, "source_sha256": digest}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_messages_are_read_from_every_kind_of_file(suffix: str, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": "!"}]} for q in "ab"]
    path = tmp_path / f"log{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    assert places(stored(path, guess_format(path))) == [(1, "a", 0), (1, "b", 0)]


def test_a_json_file_may_be_one_conversation(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps(DIALOGUE))
    assert len(stored(tmp_path / "log.json", "messages")) == 1


def trl_file(folder: Path, step: int, columns: dict[str, list[object]]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"completions_{step:05d}.parquet"
    num_rows = len(columns["prompt"])
    pq.write_table(pa.table({"step": [step] * num_rows, **columns, "advantage": [0.5] * num_rows}), path)
    return path


def test_trl_completion_logs_are_imported(tmp_path: Path) -> None:
    chat = [[{"role": "user", "content": "1+1?"}]] * 2
    said: list[object] = [[{"role": "assistant", "content": answer}] for answer in ("2", "3")]
    both = {"right": [1.0, 0.0], "short": [0.5, float("nan")], "note": ["x", "y"]}
    trl_file(tmp_path / "completions", 5, {"prompt": list(chat), "completion": said, **both})
    trl_file(tmp_path / "completions", 12, {"prompt": ["q"], "completion": ["a"], "right": [1.0]})
    one, other, text = stored(tmp_path / "completions", "trl")
    assert places([one, other, text]) == [(5, "1+1?", 0), (5, "1+1?", 1), (12, "q", 0)]
    assert one.rollout.rewards == {"right": 1.0, "short": 0.5, "score": 1.5}
    assert other.rollout.rewards == {"right": 0.0, "score": 0.0}  # a reward function that returned nothing
    assert [row["note"] for row in one.task.extra_info["logged"]] == ["x", "y"]
    assert [row["advantage"] for row in one.task.extra_info["logged"]] == [0.5, 0.5]
    assert text.task.extra_info["text_prompt"] is True


def test_reward_columns_may_be_named(tmp_path: Path) -> None:
    path = trl_file(tmp_path, 1, {"prompt": ["q"], "completion": ["a"], "right": [1.0], "length": [9]})
    (one,) = stored(path, "trl", "right")
    assert one.rollout.rewards == {"right": 1.0, "score": 1.0}
    with pytest.raises(DataError, match="no field 'wrong', the column of --reward-column"):
        imported(path, "trl", "wrong")


@pytest.mark.parametrize(
    ("form", "row", "complaint"),
    [
        ("verl", "{\n", "not JSON"),
        ("verl", [1], "expected an object such as .*, got list"),
        ("verl", {"output": "2", "score": 1}, "no field 'input', expected text"),
        ("verl", verl_line(output=3), "field 'output': expected text, got a number"),
        ("verl", verl_line(score=float("nan")), "field 'score': expected a finite number"),
        ("verl", verl_line(score=10**400), "field 'score': expected a finite number"),
        ("verl", verl_line(step=-1), "field 'step': expected an integer of at least 0"),
        ("messages", {"message": []}, "no field 'messages', .*; did you mean 'message'"),
        ("messages", {"messages": [{"role": "bot", "content": ""}]}, r"field 'messages\[0\].role': unknown role 'bot'"),
        ("messages", DIALOGUE[:1], "no assistant message"),
        ("messages", {"messages": DIALOGUE, "reward": "good"}, "field 'reward': expected a finite number, got text"),
        ("messages", {"messages": DIALOGUE, "tools": "add"}, "field 'tools': not JSON"),
        ("trl", {"prompt": "q", "completion": 3}, "field 'completion': expected a list of messages"),
    ],
)
def test_a_bad_row_is_named_with_what_was_expected(form: str, row: object, complaint: str, tmp_path: Path) -> None:
    trl = {"prompt": "q", "completion": "a", "r": 1}
    good = {"verl": verl_line(), "messages": DIALOGUE, "trl": trl, "openenv": TRACE}[form]
    path = lines(tmp_path / "log.jsonl", [good, "\n", row, good])
    with pytest.raises(DataError, match=complaint) as raised:
        imported(path, form)
    assert str(raised.value).startswith(f"{path} row 1 (line 3): ")
    assert "\n" not in str(raised.value)
    done = imported(path, form, skip_bad_rows=True)
    assert (done.num_rollouts, len(done.bad_rows)) == (2, 1)
    assert done.bad_rows[0].startswith(f"{path} row 1 (line 3): ")


def test_empty_imports_and_overlapping_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a file or a folder of files that end in"):
        imported(tmp_path, "verl")
    path = lines(tmp_path / "a/1.jsonl", ["[]\n"])
    with pytest.raises(DataError, match=r"no rows to import: all 1 rows are bad; first: .* row 0"):
        imported(path, "verl", skip_bad_rows=True)
    for name in ("1.jsonl", "2.jsonl"):
        lines(tmp_path / "b" / name, [verl_line()])
    with pytest.raises(DataError, match=r"2.jsonl: it has rows of step 7, and so does an earlier file"):
        imported(tmp_path / "b", "verl")


@pytest.mark.parametrize(
    ("row", "found"), [(verl_line(), "verl"), (DIALOGUE, "messages"), ({"prompt": 1, "completion": 2}, "trl")]
)
def test_the_format_is_that_of_the_first_row_that_has_one(row: object, found: str, tmp_path: Path) -> None:
    assert guess_format(lines(tmp_path / "log.jsonl", ["no JSON\n", 3, row])) == found


@pytest.mark.parametrize("row", [{"messages": [], "prompt": "", "completion": ""}, {"text": ""}])
def test_an_ambiguous_format_must_be_named(row: object, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give --format verl or messages or trl"):
        guess_format(lines(tmp_path / "log.jsonl", [row]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
words = st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments", "id", "tool_call_id"])
messages = st.dictionaries(words, json_values | st.sampled_from(["assistant", "user", "tool", "{}"]), max_size=5)
fields = [
    *("input", "output", "gts", "score", "step", "uid", "messages", "tools", "rewards"),
    *("prompt", "completion", "reward", "data_source", "ground_truth"),
]
garbage = st.dictionaries(st.sampled_from(fields), json_values | st.lists(messages, max_size=3), max_size=6)
deep = st.sampled_from(["[" * 100_000, '{"messages":' * 5000, '[{"role":"assistant","content":' + "[" * 20_000])
texts = (
    garbage.map(json.dumps) | json_values.map(json.dumps) | st.lists(messages).map(json.dumps) | st.text() | deep
).map(lambda text: text.encode(errors="surrogatepass"))


@pytest.mark.slow
@given(st.sampled_from(list(FORMATS)), st.lists(texts | st.binary(max_size=20), min_size=1, max_size=4))
def test_garbage_is_reported_by_row_without_other_errors(form: str, rows: list[bytes]) -> None:
    trl = {"prompt": "q", "completion": "a", "r": 1}
    good = {"verl": verl_line(), "messages": DIALOGUE, "trl": trl, "openenv": TRACE}[form]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(b"\n".join([*rows, json.dumps(good).encode()]))
        num_rows = sum(bool(line.strip()) for line in path.read_bytes().split(b"\n"))
        done = imported(path, form, skip_bad_rows=True)
        kept = list(TrajectoryStore(Path(folder) / "store").scan())
    assert done.num_rollouts == len(kept) >= 1
    assert done.num_rollouts + len(done.bad_rows) == num_rows
