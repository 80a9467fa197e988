"""Unusable datasets: the error names file, row and field."""

from __future__ import annotations

import pytest


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "train.jsonl: no rows to read"),
        ("\n\n", "train.jsonl: no rows to read"),
        ("[]", "train.jsonl: no rows to read"),
        ('{"prompt": "a"}\n{"prompt":\n', "train.jsonl row 1 (line 2): not JSON"),
        ('{"prompt": "a"}\n\n3\n', "train.jsonl row 1 (line 3): expected an object"),
        ('{"question": "a"}', "train.jsonl row 0 (line 1): no field 'prompt', expected text"),
        ('{"promt": "a"}', "did you mean 'promt'?"),
        ('{"prompt": null}', "row 0 (line 1): field 'prompt': expected text or a list"),
        ('{"prompt": 3}', "row 0 (line 1): field 'prompt': expected text or a list of messages, got a number"),
        ('{"prompt": []}', "row 0 (line 1): field 'prompt': expected a list of messages"),
        ('{"prompt": [{"role": "user"}]}', "row 0 (line 1): field 'prompt[0].content': expected text"),
        ('{"prompt": [{"content": "a"}]}', "row 0 (line 1): field 'prompt[0].role': expected text"),
    ],
)
def test_unusable_file_is_refused(bad, text, complaint):
    (bad.folder / "train.jsonl").write_text(text)
    assert complaint in bad.refused()


@pytest.mark.slow
def test_missing_files_or_unknown_file_types(bad):
    line = bad.refused(f"data.train_files={bad.folder}/trian.jsonl")
    assert (
        line == f"data.train_files: {bad.folder}/trian.jsonl: no such file; in its folder: did you mean 'train.jsonl'?"
    )
    assert "there is no folder '/nowhere' either" in bad.refused("data.train_files=/nowhere/train.jsonl")
    assert "expected a file that ends in" in bad.refused(f"data.train_files={bad.folder}/reward.py")
    (bad.folder / "empty.parquet").touch()
    assert "empty.parquet: not a readable Parquet file" in bad.refused(f"data.train_files={bad.folder}/empty.parquet")
    assert "val.jsonl: no such file" in bad.refused(f"data.val_files={bad.folder}/val.jsonl")


def test_configured_column_name_is_used(bad):
    line = bad.refused("data.prompt_key=promt")
    assert "no field 'promt', expected text or a list of messages (data.prompt_key); did you mean 'prompt'?" in line


@pytest.mark.slow
def test_too_long_prompts_are_refused_or_dropped(bad):
    bad.rows([{"prompt": "2+2?"}, {"prompt": "word " * 300}])
    line = bad.refused()
    assert f"{bad.folder}/train.jsonl row 1 (line 2): its prompt has" in line
    assert "data.max_prompt_length is 256 (1 of 2 rows are longer" in line
    assert bad.goes_on("data.filter_overlong_prompts=true", "data.train_batch_size=1")["reward/mean"] == 1.0
    bad.rows([{"prompt": "word " * 300}] * 2)
    assert "no row is left" in bad.refused("data.filter_overlong_prompts=true")
