"""User-defined dataset classes: how they are constructed, how rows are read, and what errors name."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.config.data import DataConfig
from agentrl.data.rows.custom import CustomRows
from agentrl.data.tasks import load_tasks
from agentrl.errors import ConfigError, DataError

LIKE_VERL = """
class Rows:
    def __init__(self, data_files, tokenizer, config, processor=None, max_samples=-1):
        assert processor is None
        self.prompts = [f"{name} {tokenizer} {config.max_prompt_length} {config.get('image_key', 'images')}"
                        for name in data_files]

    def __len__(self):
        return len(self.prompts)

    def __getitem__(self, row):
        return {"prompt": self.prompts[row], "reward_model": {"ground_truth": str(row)}, "data_source": "mine"}
"""
SMALL = """
class Rows:
    def __init__(self, files):
        self.files = files
    def __len__(self):
        return len(self.files)
    def __getitem__(self, row):
        return {"prompt": self.files[row]}
"""
ANY = """
class Rows(list):
    def __init__(self, **kwargs):
        super().__init__([{"prompt": " ".join(sorted(kwargs))}])
"""


def load(tmp_path, code, files=("a.parquet", "b.parquet"), **options):
    path = tmp_path / "mine.py"
    path.write_text(code)
    config = DataConfig(custom_cls={"path": path, "name": "Rows"}, max_prompt_length=64)
    return load_tasks(list(files), config, tokenizer=lambda: "TOKENIZER", **options)


def said(tasks):
    return [task.messages[0]["content"] for task in tasks]


def test_a_class_is_constructed_as_by_verl(tmp_path):
    tasks = load(tmp_path, LIKE_VERL)
    assert said(tasks) == ["a.parquet TOKENIZER 64 images", "b.parquet TOKENIZER 64 images"]
    assert [(task.ground_truth, task.data_source, task.index) for task in tasks] == [("0", "mine", 0), ("1", "mine", 1)]
    assert tasks.where(1) == f"{tmp_path}/mine.py:Rows row 1"


def test_custom_dataset_class_may_accept_fewer_or_any_parameters(tmp_path):
    assert said(load(tmp_path, SMALL)) == ["a.parquet", "b.parquet"]
    assert said(load(tmp_path, SMALL, max_samples=1)) == ["a.parquet"]
    (tmp_path / "any").mkdir()
    assert said(load(tmp_path / "any", ANY)) == ["config data_files max_samples processor tokenizer"]


def test_values_of_other_libraries_become_plain_python(tmp_path):
    row = {
        "raw_prompt": np.array([{"role": "user", "content": "hi"}], dtype=object),
        "prompt": "unrendered",
        "level": np.int64(3),
        "extra_info": {"scores": np.ones(2), "none": None},
        "images": [object],
    }
    assert CustomRows([row], "mine")[0] == {
        "prompt": [{"role": "user", "content": "hi"}],
        "level": 3,
        "extra_info": {"scores": [1.0, 1.0]},
        "images": [object],
    }


@pytest.mark.parametrize(
    ("code", "error", "expected"),
    [
        ("class Row: ...", ConfigError, "mine.py' has no 'Rows': did you mean 'Row'?"),
        ("Rows = 3", ConfigError, "mine.py:Rows is not a class"),
        (
            "class Rows:\n    def __init__(self, folder): ...",
            ConfigError,
            "mine.py:Rows needs 'folder', but gets only data_files, files, tokenizer, config, processor, max_samples",
        ),
        (
            "class Rows:\n    def __init__(self, files):\n        open(files[0])",
            DataError,
            "mine.py:Rows cannot be created with a.parquet, b.parquet: FileNotFoundError: [Errno 2] No such file",
        ),
        ("class Rows: ...", DataError, "mine.py:Rows: __len__ failed: TypeError: object of type 'Rows' has no len()"),
        (SMALL.replace("self.files[row]", "self.file"), DataError, "mine.py:Rows row 0: __getitem__ failed: Attribute"),
        (
            SMALL.replace("{'", "").replace('{"prompt": self.files[row]}', "3"),
            DataError,
            "row 0: expected a mapping su",
        ),
        (SMALL.replace('"prompt"', '"promt"'), DataError, "mine.py:Rows row 0: no field 'prompt'"),
        (
            SMALL.replace("self.files[row]", "object()"),
            DataError,
            "row 0: field 'prompt' holds a object, expected a JSON",
        ),
        (SMALL.replace("len(self.files)", "0"), DataError, "mine.py:Rows: no rows to read"),
    ],
)
def test_errors_name_the_file_the_class_and_the_row(tmp_path, code, error, expected):
    with pytest.raises(error) as caught:
        load(tmp_path, code)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
