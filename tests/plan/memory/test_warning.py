from __future__ import annotations

import json
import time

from large_models import shape_of as content_of

from agentrl.cli.compose import compose_config
from agentrl.plan.memory import warning
from agentrl.plan.memory.warning import machine_memory, memory_warning


def config_of(folder, *overrides):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content_of("qwen3_8b")))
    return compose_config([f"model.path={folder}", "actor.device=cpu", *overrides])


def test_a_run_that_does_not_fit_is_named_with_its_largest_part_and_a_change(tmp_path, monkeypatch):
    monkeypatch.setattr(warning, "machine_memory", lambda: 40 * 2**30)
    line = memory_warning(config_of(tmp_path / "model"))
    assert line is not None
    assert "\n" not in line
    assert "does not fit" in line
    assert "fits with" in line


def test_a_run_that_fits_has_no_warning_and_the_check_is_fast(tmp_path, monkeypatch):
    monkeypatch.setattr(warning, "machine_memory", lambda: 10**13)
    config = config_of(tmp_path / "model")
    start = time.process_time()
    assert memory_warning(config) is None
    assert time.process_time() - start < 0.05


def test_an_unknown_model_has_no_warning(tmp_path):
    assert memory_warning(compose_config([f"model.path={tmp_path}"])) is None


def test_the_memory_of_this_machine_is_known():
    assert machine_memory() > 2**28
