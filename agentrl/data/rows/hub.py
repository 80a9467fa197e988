"""Rows of a dataset that the `datasets` library loads by name."""

from __future__ import annotations

from typing import Any

from agentrl.data.rows.arrow import ArrowRows
from agentrl.errors import DataError, install_command
from agentrl.utils.hub import check_hub_dataset


def load_hub_rows(path: str, config: str | None, split: str) -> ArrowRows:
    """Load `split` of `path`; without `config`, use the configuration `default` or `main`, or the only one.

    Raises:
        DataError: the library is missing, the hub does not answer, the dataset does not exist, or `config` is needed
            to choose one of several configurations.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{path}: datasets by name need the library: {install_command('datasets')}") from error
    check_hub_dataset(path)
    try:
        table = datasets.load_dataset(path, config or _only_config(datasets, path), split=split).with_format("arrow")[:]
    except DataError:
        raise
    except Exception as error:  # the library does not wrap errors of its network stack
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{path}: cannot load split '{split}' of this dataset: {reason[0]}") from error
    return ArrowRows(table, f"{path}:{split}", source=path)


def _only_config(datasets: Any, path: str) -> str:  # Any: the library has no types
    names: list[str] = datasets.get_dataset_config_names(path)
    for name in ("default", "main", *names[: len(names) == 1]):
        if name in names:
            return name
    raise DataError(f"{path}: choose one of its configurations: {', '.join(f'{path}/{name}' for name in names)}")
